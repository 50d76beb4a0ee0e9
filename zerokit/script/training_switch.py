"""Scripts that train only where an option says so, as the Trainer examples of Transformers do."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.errors import InputError
from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import truth
from zerokit.script.reader import ScriptFacts
from zerokit.script.trainer_arguments import argument_file

_SWITCH = "do_train"  # transformers/training_args.py; a Trainer itself never reads it, its script does


def why_no_training(facts: ScriptFacts, arguments: Sequence[str]) -> str | None:
    """Why the script will not train with these arguments, as far as its source tells; None: it may."""
    # an attribute: Axolotl has a function of that name
    reads = _SWITCH in facts.attributes and facts.parses_training_arguments
    if (
        not reads
        or _SWITCH in facts.fields | facts.keywords
        or any(one.name == _SWITCH for one in facts.assigned)
    ):
        return None
    try:
        file = argument_file(arguments, facts)
    except InputError:
        return None  # the script says so itself
    given = ScriptOptions(
        facts=facts, style=facts.style, user_arguments=tuple(arguments), file=file
    ).given(_SWITCH)  # fmt: skip
    if given is None:
        return f"{facts.path.name} trains only with --{_SWITCH}, which is not among its arguments: add it"
    if truth(given[0]) is False:
        return f"{facts.path.name} trains only with --{_SWITCH}, and its arguments have {given[1]}"
    return None
