"""Options of a command of zerokit that stand after the script, which gets them instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerokit.errors import InputError
from zerokit.script.option_list import unknown_option
from zerokit.script.reader import PARSERS_OF_DATACLASSES, ScriptFacts

OPTIONS = {
    "launch": (
        "--dry-run", "--accept-mismatch", "--no-arguments", "--no-plan", "--retry-smaller", "--max-restarts",
        "--resume-option", "--run-dir", "--no-trackers", "--no-host-probe", "--rehearsal-seconds",
        "--unconfined",
    ),
    "plan": (
        "--vram", "--host-ram", "--nvme", "--no-calibration", "--all-gpus", "--explain",
        "--rehearsal-seconds", "--unconfined",
    ),
    "emit sbatch": ("--time", "--job-name", "--style", "--accept-mismatch", "--no-arguments"),
    "emit kubernetes": ("--image", "--gpu-resource", "--style", "--accept-mismatch", "--no-arguments"),
    "rehearse": ("--vram", "--host-speed", "--versions", "--no-arguments", "--accept-mismatch", "--html",
                 "--unconfined"),
    "tune": (
        "--dry-run", "--host-ram", "--nvme", "--no-calibration", "--run-dir", "--rehearsal-seconds", "--top",
        "--unconfined",
    ),
}  # fmt: skip
"""By command, those that a training script seldom has."""
COMMON = {
    "launch": (
        "--plan", "--deepspeed", "--recipe", "--device", "--launcher", "--style", "--out", "--num-ranks",
        "--gpus", "--nodes", "--hostfile", "--master-port", "--grace", "--heartbeat", "--show",
    ),
    "plan": (
        "--model", "--gpus", "--nodes", "--gpu", "--micro-batch", "--global-batch", "--zero", "--out",
        "--html",
    ),
    "emit sbatch": ("--plan", "--out"),
    "emit kubernetes": ("--plan", "--out"),
    "rehearse": (
        "--plan", "--gpus", "--gpu", "--rank", "--ranks", "--steps", "--launcher", "--out", "--json",
    ),
    "tune": (
        "--model", "--params", "--gpus", "--gpu", "--device", "--seq-len", "--micro-batch", "--global-batch",
        "--zero", "--recipe", "--steps", "--timeout", "--heartbeat", "--grace", "--launcher", "--style",
        "--out", "--show", "--json",
    ),
}  # fmt: skip
"""By command, those that may well be a script's own: the command's only where the script's are all known."""
_READS_ARGUMENTS = frozenset((
    "argv", "parse_args", "parse_known_args", "ArgumentParser", "Fire", "tyro", "hydra", "click", "typer",
    "flags",
))  # fmt: skip


def warnings(facts: ScriptFacts, script: str, arguments: Sequence[str], command: str) -> list[str]:
    """What to say of arguments that the script will not take as they are meant.

    Raises:
        InputError: as :func:`misplaced`.
    """
    wrong = misplaced(facts, script, arguments, command)
    if wrong is None:
        also_own = {name: f"; {_fix(command, name, script)}" for name in COMMON[command]}
        wrong = unknown_option(script, facts.option_list, arguments, also_own)
    return [] if wrong is None else [wrong]


def _fix(command: str, name: str, script: str) -> str:
    """Where an option of a command belongs."""
    dashes = "-- " if command == "plan" else ""
    return f"options of zerokit stand before the script: zerokit {command} {name} … {dashes}{script} …"


def misplaced(facts: ScriptFacts, script: str, arguments: Sequence[str], command: str) -> str | None:
    """A warning of an option of a command that the script gets, where its parser is not in its own source.

    Args:
        facts: of the script's source.
        script: its name, as it was given.
        arguments: what stands after it.
        command: one of :data:`OPTIONS`.

    Raises:
        InputError: the script's own source parses its arguments and knows no such option, or parses none.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    name = next((name for name in _names(own) if name in OPTIONS[command] and _is_unknown(name, facts)), None)
    reads_none = facts.style != "none" and not facts.mentions & _READS_ARGUMENTS
    strange = own if reads_none and not _parses_itself(facts) else facts.option_list.unknown(own)
    name = name or next((word for word in _names(strange) if word in COMMON[command]), None)
    if name is None:
        return None
    gets = f"{name} stands after {script}, so the script gets it"
    fix = _fix(command, name, script)
    if _parses_itself(facts) or reads_none:
        raise InputError(f"{gets}, and knows no such option: {fix}")
    return f"warning: {gets}, and nothing in its source names such an option; {fix}"


def _names(words: Sequence[str]) -> Iterator[str]:
    return (word.partition("=")[0] for word in words)


def _is_unknown(name: str, facts: ScriptFacts) -> bool:
    """Whether nothing in the script's source is called so."""
    if facts.unreadable:
        return False
    key = name[2:].replace("-", "_")
    return not ({name, f"--{key}"} & facts.options or key in facts.fields | facts.mentions | facts.keywords)


def _parses_itself(facts: ScriptFacts) -> bool:
    return bool(facts.options) or bool(facts.mentions & PARSERS_OF_DATACLASSES)
