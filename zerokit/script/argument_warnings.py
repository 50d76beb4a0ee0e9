"""What is wrong with a script's arguments before it runs: options of zerokit among them, no training asked
for, a checkpoint or a model that is not there, a precision that its ranks refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerokit.domain.settings import SETTINGS
from zerokit.errors import InputError
from zerokit.notes import warning
from zerokit.script.arguments import ScriptOptions, truth
from zerokit.script.entry_points import Target
from zerokit.script.reader import PARSERS_OF_DATACLASSES, ScriptFacts
from zerokit.suggest import misspelt

_OF_JOBS = ("--style", "--accept-mismatch", "--no-arguments")
_OF_SERVICES = {
    "emit skypilot": ("--image", "--gpu-name"), "emit dstack": ("--image", "--gpu-name"),
    "emit torchx": ("--image",), "emit ray": (),
}  # fmt: skip
OPTIONS = {
    "launch": (
        "--dry-run", "--accept-mismatch", "--no-arguments", "--no-plan", "--retry-smaller", "--max-restarts",
        "--resume-option", "--run-dir", "--no-trackers", "--no-host-probe", "--no-rehearsal",
        "--rehearsal-seconds", "--unconfined", "--no-cache",
    ),
    "plan": (
        "--vram", "--host-ram", "--nvme", "--no-calibration", "--all-gpus", "--explain",
        "--rehearsal-seconds", "--unconfined", "--no-cache",
    ),
    "emit sbatch": ("--time", "--job-name", *_OF_JOBS),
    "emit kubernetes": ("--image", "--gpu-resource", *_OF_JOBS),
    **{command: (*own, *_OF_JOBS) for command, own in _OF_SERVICES.items()},
    "rehearse": ("--vram", "--host-speed", "--versions", "--no-arguments", "--accept-mismatch", "--html",
                 "--unconfined", "--no-cache"),
    "tune": (
        "--dry-run", "--host-ram", "--nvme", "--no-calibration", "--run-dir", "--rehearsal-seconds", "--top",
        "--unconfined", "--no-cache",
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
    **dict.fromkeys(_OF_SERVICES, ("--plan", "--out")),
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


_LIKE_TRAINING_ARGUMENTS = ("--deepspeed", "--output_dir")
"""Fields of TrainingArguments that begin as an option of a command."""


def misplaced(facts: ScriptFacts, target: Target, command: str) -> list[str]:
    """A warning of an option of a command that the script gets, where its parser is not in its own source.

    Args:
        facts: of the script's source.
        target: the script, and what stands after it.
        command: one of :data:`OPTIONS`.

    Raises:
        InputError: the script's own source parses its arguments and knows no such option, or parses none.
    """
    parses_fields = bool(facts.mentions & PARSERS_OF_DATACLASSES)
    reads_none = facts.style != "none" and not facts.mentions & _READS_ARGUMENTS
    parses_itself = bool(facts.options) or parses_fields

    def is_misplaced(name: str) -> bool:
        key = name[2:].replace("-", "_")
        if name in OPTIONS[command]:
            spellings = {name, f"--{key}"}
            named = spellings & facts.options or key in facts.fields | facts.mentions | facts.keywords
            return not (facts.unreadable or named)
        if name not in COMMON[command]:
            return False
        if reads_none and not parses_itself:
            return True
        may_be_field = parses_fields and any(one.startswith(name) for one in _LIKE_TRAINING_ARGUMENTS)
        return facts.lacks(name) and not may_be_field

    script, arguments = target.name, target.arguments
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    name = next(filter(is_misplaced, (word.partition("=")[0] for word in own)), None)
    if name is None:
        return []
    dashes = "-- " if command == "plan" else ""
    gets = f"{name} stands after {script}, so the script gets it"
    fix = f"options of zerokit stand before the script: zerokit {command} {name} … {dashes}{script} …"
    if parses_itself or reads_none:
        raise InputError(f"{gets}, and knows no such option: {fix}")
    text = f"{gets}, and nothing in its source names such an option; {fix}"
    return [warning("misplaced-option", text)]


# ---------------------------------------------------------------- what its source does not read


def without_defaults(facts: ScriptFacts, arguments: Sequence[str]) -> ScriptOptions:
    """The arguments with their file; alone where that is not there, which the script says itself."""
    try:
        return ScriptOptions.read(facts, facts.style, tuple(arguments))
    except InputError:
        return ScriptOptions(facts=facts, style=facts.style, user_arguments=tuple(arguments))


_SWITCH = "do_train"  # transformers/training_args.py; a Trainer itself never reads it, its script does


def why_no_training(options: ScriptOptions) -> str | None:
    """Why the script will not train with these arguments, as far as its source tells; None: it may. The
    Trainer examples of Transformers train only where an option says so."""
    facts, given = options.facts, options.given(_SWITCH)
    # an attribute: Axolotl has a function of that name
    reads = _SWITCH in facts.attributes and facts.parses_training_arguments
    if not reads or _SWITCH in facts.fields | facts.keywords or (given and truth(given[0]) is not False):
        return None
    why = f"{facts.path.name} trains only with --{_SWITCH}, "
    lacks = "which is not among its arguments: add it"
    return why + (lacks if given is None else f"and its arguments have {given[1]}")


NAME = "resume_from_checkpoint"
"""A Trainer takes it as an argument of ``train`` alone (transformers 5.23.0, trainer.py:1450)."""


def reads_checkpoint(facts: ScriptFacts) -> bool:
    """Whether the script's code reads the option that names a checkpoint."""
    return NAME in facts.mentions and (facts.parses_training_arguments or f"--{NAME}" in facts.options)


def why_not_resumed(options: ScriptOptions) -> str | None:
    """Why the checkpoint among the script's arguments will not be loaded, as far as its source tells; one
    that is read and is not there ends the run when ``train`` is called (trainer.py:1565)."""
    facts, given = options.facts, options.given(NAME)
    is_parsed = facts.parses_training_arguments and facts.package is None
    if not is_parsed or given is None or given[0] is None:
        return None
    if NAME not in facts.mentions:
        never = (
            f"{facts.path.name} never reads --{NAME}, and a Trainer does not by itself: training begins "
            f"anew; write trainer.train({NAME}=training_args.{NAME})"
        )
        return None if truth(given[0]) is False else never
    folder = str(given[0])
    # a word may be one that the script knows, as "last"; a parser of training arguments has text here
    is_path = isinstance(given[0], str) and ("/" in folder or folder.lower() in ("true", "false"))
    is_missing = is_path and "://" not in folder and not Path(folder).exists()
    return f"{given[1]}: there is no such folder" if is_missing else None


# ---------------------------------------------------------------- the model

_MODELS = SETTINGS["model"].in_scripts
_OF_A_MODEL = ("config.json", "adapter_config.json")


def named_model(options: ScriptOptions) -> tuple[str, str] | None:
    """Name or path of the model, and how it stands in the arguments, their file or the script; None: nothing.
    An option is said to be the script's: zerokit may have one of the same name."""
    script = options.facts.path.name
    given = next((given for name in _MODELS if (given := options.given(name)) is not None), None)
    if given is not None:
        model, location = given
        owner = f"{script}'s " if location.startswith("--") else ""
        return (model, f"{owner}{location}") if isinstance(model, str) else None
    own = options.own_defaults
    name = next((name for name in _MODELS if isinstance(own.get(name), str)), None)
    if name is None:
        return None
    return str(own[name]), f"{script}'s own {options.spelling(name)} {own[name]} (its default)"


def folder_meant(name: str) -> str | None:
    """The model's folder in the working folder that a name is nearly spelt as; None: it exists, or there is
    none. A name with a slash may be a repository of the Hub."""
    if not name or "/" in name or Path(name).exists():
        return None
    folders = [path.parent.name for file in _OF_A_MODEL for path in Path().glob(f"*/{file}")]
    return next(iter(misspelt(name, sorted(set(folders)))), None)


# ---------------------------------------------------------------- bf16 on CPU ranks

_ASK = ("bf16", "bf16_full_eval")
_TO_CPU = ("use_cpu", "no_cuda")


def refused_bf16(options: ScriptOptions) -> str | None:
    """What to say before TrainingArguments end the run (transformers 5.23, training_args.py:1777); None: they
    will not, or only the run tells. Of arguments that a command line fills."""
    if options.style != "trainer" or not options.facts.parses_training_arguments:
        return None
    asked = next((name for name in _ASK if _is_on(options, name)), None)
    if asked is None or any(_is_on(options, name) is not False for name in _TO_CPU):
        return None
    given = options.given(asked)
    source = given[1] if given is not None else f"{asked} is on"
    return f"{source}, which TrainingArguments refuse on CPU ranks; give the script --use_cpu True"


def _is_on(options: ScriptOptions, name: str) -> bool | None:
    decided = options.decided(name)
    return truth(False if decided is None else decided[0])
