"""Whether a script's code gives its Trainer the checkpoint that its arguments name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerokit.errors import InputError
from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import truth
from zerokit.script.reader import ScriptFacts
from zerokit.script.trainer_arguments import argument_file

NAME = "resume_from_checkpoint"
"""A Trainer takes it as an argument of ``train`` alone (transformers 5.23.0, trainer.py:1450)."""

_OUTPUT = "output_dir"
_KEEPS_TEXT = (None, "trl")  # packages of scripts whose parser leaves a word on the command line text


def reads_checkpoint(facts: ScriptFacts) -> bool:
    """Whether the script's code reads the option that names a checkpoint."""
    return NAME in facts.mentions and (facts.parses_training_arguments or f"--{NAME}" in facts.options)


def why_not_resumed(facts: ScriptFacts, arguments: Sequence[str]) -> str | None:
    """Why the checkpoint among the script's arguments will not be loaded, as far as its source tells."""
    if not facts.parses_training_arguments or facts.package not in _KEEPS_TEXT:
        return None
    try:
        file = argument_file(arguments, facts)
    except InputError:
        return None  # the script says so itself
    options = ScriptOptions(facts=facts, style=facts.style, user_arguments=tuple(arguments), file=file)
    given = options.given(NAME)
    if given is None or given[0] is None:
        return None
    value = given[0]
    if NAME in facts.mentions:
        if not isinstance(value, str) or Path(value).exists():
            return None
        if value.lower() in ("true", "false"):
            return _not_a_folder(options, value)
        return _missing(options, value, given[1])
    if facts.package is not None or truth(value) is False:
        return None
    return (
        f"{facts.path.name} never reads --{NAME}, and a Trainer does not by itself: training begins anew; "
        f"write trainer.train({NAME}=training_args.{NAME})"
    )


def _not_a_folder(options: ScriptOptions, word: str) -> str:
    """The parser of training arguments has text here (training_args.py:1501), and ``train`` looks for the
    newest checkpoint only where it gets a bool (trainer.py:1554)."""
    fix = f"give it the checkpoint's folder: --{NAME} {_newest(options)}"
    if truth(word) is False:
        fix = "leave it out"
    return f"a Trainer takes --{NAME} {word} for a folder named {word}; {fix}"


def _missing(options: ScriptOptions, value: str, location: str) -> str | None:
    """That a checkpoint named by its path is not here, which ends the run when ``train`` is called
    (trainer.py:1565); None: the word may be one that the script knows, as ``last``."""
    if "/" not in value or "://" in value:
        return None
    newest = _newest(options)
    return f"{location}: there is no such folder" + (
        f"; the newest checkpoint is {newest}" if Path(newest).is_dir() else ""
    )


def _newest(options: ScriptOptions) -> str:
    """The newest checkpoint in the output folder that the arguments name, or what one is called."""
    given = options.given(_OUTPUT)
    folder = Path(str(given[0])) if given is not None else Path(_OUTPUT.upper())
    numbers = [path.name.rpartition("-")[2] for path in folder.glob("checkpoint-*") if path.is_dir()]
    steps = [int(number) for number in numbers if number.isdecimal()]
    return str(folder / f"checkpoint-{max(steps) if steps else 'STEP'}")
