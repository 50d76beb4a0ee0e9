"""Whether a script's code gives its Trainer the checkpoint that its arguments name."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.errors import InputError
from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import truth
from zerokit.script.reader import ScriptFacts
from zerokit.script.trainer_arguments import argument_file

NAME = "resume_from_checkpoint"
"""A Trainer takes it as an argument of ``train`` alone (transformers 5.23.0, trainer.py:1450)."""


def reads_checkpoint(facts: ScriptFacts) -> bool:
    """Whether the script's code reads the option that names a checkpoint."""
    return NAME in facts.mentions and (facts.parses_training_arguments or f"--{NAME}" in facts.options)


def why_not_resumed(facts: ScriptFacts, arguments: Sequence[str]) -> str | None:
    """Why the checkpoint among the script's arguments will not be loaded, as far as its source tells."""
    if not facts.parses_training_arguments or facts.package is not None or NAME in facts.mentions:
        return None
    try:
        file = argument_file(arguments, facts)
    except InputError:
        return None  # the script says so itself
    options = ScriptOptions(facts=facts, style=facts.style, user_arguments=tuple(arguments), file=file)
    given = options.given(NAME)
    if given is None or given[0] is None or truth(given[0]) is False:
        return None
    return (
        f"{facts.path.name} never reads --{NAME}, and a Trainer does not by itself: training begins anew; "
        f"write trainer.train({NAME}=training_args.{NAME})"
    )
