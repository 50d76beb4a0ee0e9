"""What the user wants run: a file, a module or a console command (``trl sft``, ``llamafactory-cli train``).

Tools that fine-tune start ranks of their own, through accelerate or torchrun: under ``zerokit launch`` every
rank would start all ranks again. So those that are known are resolved to what one of their workers runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError, about
from zerokit.trainer_files import ENDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the user wants run: a script or a module, and its arguments verbatim; ``source``: the module that
    holds a console command's code."""

    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    source: str | None = None

    @property
    def name(self) -> str:
        """For showing and for the run folder's name."""
        return self.script if self.script is not None else str(self.module)

    @property
    def digest(self) -> str:
        """Digest by which a plan knows the command again: the file's name or the module's, and the
        arguments."""
        name = Path(self.script).name if self.script is not None else f"-m {self.module}"
        return hashlib.sha256(json.dumps([name, *self.arguments]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is run for what the user typed, and what is worth saying about it."""

    target: Target
    note: str | None = None


def target_of(module: str | None, words: tuple[str, ...], command: str = "launch") -> Resolved:
    """What ``-m MODULE`` with ``words`` as its arguments, or ``words`` alone, name; ``command``: of zerokit,
    that was typed. Raises InputError: as :func:`resolve`."""
    if module:
        return Resolved(target=Target(script=None, module=module, arguments=words))
    return resolve(words[0], words[1:], command)


def named_target(
    script: str | os.PathLike[str] | None, module: str | None, arguments: Sequence[object]
) -> Target:
    """What a program asks for: a script or console command, or a module, with its arguments. Raises
    InputError: neither or both are named, or the arguments are one text; otherwise as :func:`resolve`."""
    if (script is None) == (module is None):
        raise InputError("⟨script⟩ or ⟨module⟩: name one of them")
    if isinstance(arguments, str | bytes):
        raise InputError(f"⟨arguments⟩ {arguments!r}: give a list of words, such as ['--epochs', '1']")
    words = [] if script is None else [os.fspath(script)]
    with about("script"):
        return target_of(module, (*words, *map(str, arguments))).target


def resolve(word: str, arguments: tuple[str, ...], command: str = "launch") -> Resolved:
    """A script stays what it is; a console command becomes what its workers run. Raises InputError: a
    launcher, which would start ranks of its own; a tool that is not installed, or whose subcommand trains
    nothing; a program that is no Python."""
    path = Path(word)
    if (path / "plan.yaml").is_file() and not (path / "__main__.py").is_file():
        raise InputError(
            f"{word} is the folder of a plan, not a script: name it with ⟨plan⟩⟪ before the script⟫",
            field="script",
        )
    if word.endswith(ENDINGS) and path.is_file():
        from zerokit.trainer_files.reading import read_trainer_file

        first, *rest = read_trainer_file(word).command
        return resolve(first, (*rest, *arguments), command)
    exists = (path / "__main__.py").is_file() if path.is_dir() else path.exists()
    if exists or word in (".", "..") or "/" in word or word.endswith((".py", ".zip", ".pyz")):
        return Resolved(target=Target(script=word, module=None, arguments=arguments))
    if word in _LAUNCHERS:
        raise InputError(_without_launcher(word, arguments, command))
    if word in _TOOLS:
        return _TOOLS[word](word, arguments)
    return _console(word, arguments)


# ---- launchers

_LAUNCHERS: Mapping[str, str] = {
    "accelerate": " --launcher accelerate",
    "torchrun": " --launcher torchrun",
    **dict.fromkeys(("deepspeed", "python", "python3", "mpirun", "srun"), ""),
}


def _without_launcher(word: str, arguments: tuple[str, ...], command: str) -> str:
    """Found by its ending: the options of launchers take values that look like scripts."""
    script = next((index for index, text in enumerate(arguments) if text.endswith(".py")), None)
    rest = " ".join(arguments[script:]) if script is not None else "SCRIPT [ARGS]"
    if command == "plan":
        return f"{word}: name the script alone; leave {word} and its options out: zerokit plan … -- {rest}"
    options, lost, file = _LAUNCHERS[word], "", _file_of(arguments)
    if file is not None:
        options = f" --accelerate {file}" if command == "rehearse" else options
        lost = "" if command == "rehearse" else _LOST
    return (
        f"{word}: zerokit {command} starts the ranks itself; leave {word} and its options out: "
        f"zerokit {command}{options} {rest}{lost}"
    )


_LOST = " (without what --config_file says: FSDP or DeepSpeed reaches it with ⟨plan⟩)"


def _file_of(arguments: tuple[str, ...]) -> str | None:
    """The YAML that Accelerate's launcher would read; None: none is named."""
    for text, following in zip(arguments, (*arguments[1:], "FILE"), strict=True):
        if text.replace("-", "_").startswith("__config_file"):
            return text.partition("=")[2] or following
    return None


# ---- tools that start workers


def _package(name: str, word: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise InputError(f"{word}: package {name} is not installed beside {sys.executable}")
    return Path(spec.origin).parent


def _trl(word: str, arguments: tuple[str, ...]) -> Resolved:
    """trl 1.16, ``cli/commands/training.py``: ``accelerate launch trl/scripts/NAME.py``."""
    scripts = _package("trl", word) / "scripts"
    name = arguments[0] if arguments else ""
    script = scripts / f"{name.replace('-', '_')}.py"
    subcommands = sorted(
        path.stem for path in scripts.glob("*.py") if _has(path, "def make_parser") and _has(path, "Trainer(")
    )
    if script.stem not in subcommands:
        raise InputError(f"trl {name}: does not train; these commands do: {', '.join(subcommands)}")
    _refuse_options(f"trl {name}", arguments, ("--accelerate_config",))
    target = Target(script=str(script), module=None, arguments=arguments[1:])
    note = f"trl {name} runs {script} in each rank; its own launcher is left out"
    return Resolved(target=target, note=note)


def _axolotl(word: str, arguments: tuple[str, ...]) -> Resolved:
    """axolotl 0.8 and later, ``cli/utils/train.py``: ``accelerate launch -m axolotl.cli.train FILE``."""
    _package("axolotl", word)
    if arguments[:1] != ("train",):
        raise InputError("axolotl: only `axolotl train FILE.yaml` trains")
    _refuse_options("axolotl train", arguments, ("--launcher", "--num-processes", "--main-process-port"))
    remaining = tuple(a for a in arguments[1:] if a not in ("--accelerate", "--no-accelerate"))
    target = Target(script=None, module="axolotl.cli.train", arguments=remaining)
    note = "axolotl train runs -m axolotl.cli.train in each rank; its own launcher is left out"
    return Resolved(target=target, note=note)


def _llamafactory(word: str, arguments: tuple[str, ...]) -> Resolved:
    """LLaMA-Factory 0.9, ``launcher.py``: ``torchrun launcher.py FILE`` as soon as it sees several GPUs."""
    package = _package("llamafactory", word)
    if arguments[:1] != ("train",):
        raise InputError(f"{word}: only `{word} train FILE.yaml` trains")
    script = package / "launcher.py"
    if not _has(script, "__main__"):
        raise InputError(f"{word}: {script} cannot be run as torchrun runs it: LLaMA-Factory 0.9 is known")
    target = Target(script=str(script), module=None, arguments=arguments[1:])
    return Resolved(target=target, note=f"{word} train runs {script} in each rank; torchrun is left out")


def _swift(word: str, arguments: tuple[str, ...]) -> Resolved:
    """ms-swift 4.6, ``cli/main.py``: ``torchrun swift/cli/sft.py``, with what a file says as arguments."""
    package = _package("swift", word)
    name = arguments[0] if arguments else ""
    if name not in ("sft", "pt", "rlhf"):
        raise InputError(f"swift {name}: does not train; these commands do: pt, rlhf, sft")
    script, given = package / "cli" / f"{name}.py", arguments[1:]
    if given and given[0].endswith(ENDINGS):
        from zerokit.trainer_files.reading import as_arguments

        given = (*as_arguments(given[0]), *given[1:])
    target = Target(script=str(script), module=None, arguments=given)
    return Resolved(target=target, note=f"swift {name} runs {script} in each rank; torchrun is left out")


_TOOLS: Mapping[str, Callable[[str, tuple[str, ...]], Resolved]] = {
    "trl": _trl,
    "swift": _swift,
    "axolotl": _axolotl,
    "llamafactory-cli": _llamafactory,
    "lmf": _llamafactory,
}


def _has(path: Path, text: str) -> bool:
    try:
        return text in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _refuse_options(command: str, arguments: tuple[str, ...], options: tuple[str, ...]) -> None:
    for argument in arguments:
        if argument.partition("=")[0] in options:
            raise InputError(
                f"{command}: {argument.partition('=')[0]} belongs to its own launcher, which zerokit "
                "replaces; leave it out (zerokit launch takes --num-ranks, --master-port, --launcher)"
            )


# ---- any other console command


def _console(word: str, arguments: tuple[str, ...]) -> Resolved:
    """The program that pip made for an entry point: a Python file, run as it is."""
    sibling = Path(sys.executable).parent / word
    program = sibling if sibling.is_file() else Path(shutil.which(word) or sibling)
    entries = importlib.metadata.entry_points(group="console_scripts")
    entry = next((candidate for candidate in entries if candidate.name == word), None)
    if entry is None or not program.is_file():
        raise InputError(
            f"script {word}: there is no such file, and no console command of that name among the packages "
            f"of {sys.executable}"
        )
    with program.open("rb") as file:
        first = file.readline(4096)
    if b"python" not in first and first != b"#!/bin/sh\n":
        raise InputError(f"{program}: not a Python program, which launch needs")
    target = Target(script=str(program), module=None, arguments=arguments, source=entry.module)
    return Resolved(
        target=target,
        note=f"{word} is run as it is; if it starts ranks of its own, name what one of them runs instead",
    )
