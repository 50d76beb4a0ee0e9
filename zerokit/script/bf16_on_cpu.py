"""bf16 that a Trainer's arguments ask for on CPU ranks, where they refuse it unless told to use the CPU."""

from __future__ import annotations

from collections.abc import Iterable

from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_settings import ARGUMENTS, CodeSetting
from zerokit.script.option_values import truth

_ASK = ("bf16", "bf16_full_eval")
_TO_CPU = ("use_cpu", "no_cuda")


def of_arguments(options: ScriptOptions) -> str | None:
    """What to say before TrainingArguments end the run (transformers 5.23, training_args.py:1777); None: they
    will not, or only the run tells.

    Of arguments that a command line fills; TRL's classes ask for bf16 where nothing is given.
    """
    if options.style != "trainer" or not options.facts.parses_training_arguments:
        return None
    asked = next((name for name in _ASK if _is_on(options, name)), None)
    if asked is None or any(_is_on(options, name) is not False for name in _TO_CPU):
        return None
    given = options.given(asked)
    source = given[1] if given is not None else f"{asked} is on by default"
    return f"{source}, which TrainingArguments refuse on CPU ranks; give the script --use_cpu True"


def of_code(settings: Iterable[CodeSetting]) -> str | None:
    """The same of training arguments that the code makes; launches give their options to no others."""
    settings = [one for one in settings if one.call.endswith(ARGUMENTS)]
    on_cpu = {(one.path, one.line) for one in settings if one.name in _TO_CPU}
    for one in settings:
        is_fixed = one.name == "bf16" and one.value is True and one.option is None
        if is_fixed and (one.path, one.line) not in on_cpu:
            return f"{one.text}: refused on CPU ranks; add use_cpu=True beside it"
    return None


def _is_on(options: ScriptOptions, name: str) -> bool | None:
    given = options.given(name)
    if given is not None:
        return truth(given[0])
    decided = options.decided(name)
    value = options.defaults.get(name, False if decided is None else decided[0])
    return truth(value)
