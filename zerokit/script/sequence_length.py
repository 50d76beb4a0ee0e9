"""At how many tokens a script cuts its sequences, held to a plan. What the data hold decides the rest."""

from __future__ import annotations

from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import LENGTHS, number


def length_warnings(options: ScriptOptions, planned: int, *, by_options: bool = True) -> list[str]:
    """What to say where sequences may not have the planned length.

    Args:
        options: of the script.
        planned: tokens of a sequence that the plan counts on.
        by_options: say which option plans for them, as no command is named that plans with the script.
    """
    if _is_refused(options):
        return []
    longest = longest_sequence(options)
    if longest is None:
        unset = _left_to_the_model(options)
        return [] if unset is None else [
            f"warning: --{unset} is not given, so the tokenizer and the model decide how long the script's "
            f"sequences become, and the plan has {planned:,} tokens: give --{unset} {planned}"
            f"{', or plan again with the ⟨seq_len⟩ that they have' if by_options else ''}"
        ]  # fmt: skip
    tokens, location = longest
    if tokens == planned:
        return []
    remedies = [
        *_remedies(options, planned),
        *([f"plan again with ⟨seq_len⟩ {tokens}"] if by_options else []),
    ]
    compared = "more" if tokens > planned else "less"
    return [
        f"warning: the script cuts sequences at {tokens:,} tokens ({location}), but the plan has "
        f"{planned:,}: it may take {compared} memory and time than predicted{'; ' if remedies else ''}"
        f"{', or '.join(remedies)}"
    ]


def _is_refused(options: ScriptOptions) -> bool:
    """Whether it is given by an option that the script has not: it gets another name before it counts."""
    unknown = options.facts.option_list.unknown(options.user_arguments)
    return any(name[2:].replace("-", "_") in LENGTHS for name in unknown)


def longest_sequence(options: ScriptOptions) -> tuple[int, str] | None:
    """At how many tokens the script cuts a sequence, and where that stands; None: not known."""
    value = next((value for name in LENGTHS if (value := options.given(name)) is not None), None)
    if value is None and "max_length" in options.defaults:
        value = options.defaults["max_length"], f"max_length is {options.defaults['max_length']} by default"
    if value is None:
        own = _own_options(options).items()
        value = next(
            (
                (default, f"{options.spelling(name)} by default")
                for name, default in own
                if default is not None
            ),
            None,
        )
    tokens = number(value[0]) if value is not None else None
    return None if value is None or tokens is None else (tokens, value[1])


def _remedies(options: ScriptOptions, planned: int) -> list[str]:
    """How the script gets the planned length; none where it is not known to have an option for it."""
    given = next((name for name in LENGTHS if options.given(name) is not None), None)
    if given is not None and options.file is not None and given in options.file.values:
        return [f"write {given}: {planned} in {options.file.path}"]
    own = next((name for name, default in _own_options(options).items() if default is not None), None)
    trainers = "max_length" if "max_length" in options.defaults else None
    name = given or (trainers if options.facts.parses_training_arguments else None) or own
    return [] if name is None else [f"give the script {options.spelling(name)} {planned}"]


def _left_to_the_model(options: ScriptOptions) -> str | None:
    """The option for it that the script has, has no default for, and was not given."""
    if any(options.given(name) is not None for name in LENGTHS) or "max_length" in options.defaults:
        return None
    return next((name for name, default in _own_options(options).items() if default is None), None)


def _own_options(options: ScriptOptions) -> dict[str, object]:
    """Options of the script's own for it, with their defaults."""
    return {name: default for name, default in options.own_defaults.items() if name in LENGTHS}
