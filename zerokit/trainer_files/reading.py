"""Reads a trainer's own file: what it asks for as a plan's options, and what of it no answer counts."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from zerokit.errors import FileInputError, InputError
from zerokit.strictload import Document, Location, Path, load_yaml, parse_yaml, read_text
from zerokit.trainer_files.keys import TrainerKeys, trainer_of, trainers
from zerokit.trainer_files.kinds import KINDS
from zerokit.trainer_files.says import Says
from zerokit.values import frozen_dataclass

_CONTINUED = re.compile(r"\\[ \t]*\n")
_OPERATOR = re.compile(r"[;<>|&]+")
_STREAM = re.compile(r"\s\d(?=[<>])")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


SCRIPT_ENDING = ".sh"


def trainer_in(document: Document) -> TrainerKeys | None:
    """Return whose file it is: of a shell script by its command, else by its keys."""
    if not document.path.endswith(SCRIPT_ENDING):
        return trainer_of(document.value)
    found = _command_in(document.text)
    return trainers()[found[0]] if found else None


def script_document(path: str, text: str) -> Document:
    """Return the arguments of a shell script's first command that trains, each where it stands. Variables
    stay as they are written; nothing is run. Raises FileInputError: it has no such command."""
    found = _command_in(text)
    if found is None:
        raise FileInputError(path, f"has no command of {', '.join(KINDS)} that trains", 1, 1)
    _, words, values = found
    begin = re.search(rf"{re.escape(words[0])}\s+{words[1]}\b", text)
    places: dict[Path, Location] = {}
    for name in values:
        written = re.compile(rf"--{re.escape(name).replace('_', '[-_]')}(?![\w-])")
        if at := written.search(text, begin.start() if begin else 0):
            before = text[: at.start()]
            places[(name,)] = Location(before.count("\n") + 1, at.start() - before.rfind("\n"))
    return Document(path=path, text=text, value=values, keys=places, values=places)


def _command_in(text: str) -> tuple[str, tuple[str, ...], dict[str, Any]] | None:
    """The first command that trains: its trainer, words, and arguments by name."""
    for line in _CONTINUED.sub(" ", text).splitlines():
        try:
            # the words of a line, up to what a shell would do with the command's output or after it
            lexer = shlex.shlex(_STREAM.sub(" ", line), posix=True, punctuation_chars=";<>|&")
            lexer.whitespace_split = True
            words = list(itertools.takewhile(lambda word: not _OPERATOR.fullmatch(word), lexer))
        except ValueError:  # a quotation over several lines
            continue
        while words and _ASSIGNED.fullmatch(words[0]):
            del words[0]
        for name, kind in KINDS.items():
            if words[:1] == [kind.command[0]] and words[1:2] and words[1] in kind.subcommands:
                return name, tuple(words), _by_name(words[2:])
    return None


def _by_name(words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            key, equals, value = word.removeprefix("--").partition("=")
            key = key.replace("-", "_")
            values[key] = _value(value) if equals else True
        elif key:
            before = values[key]
            values[key] = _value(word) if before is True else [*_listed(before), _value(word)]
    return {name: _as_one(value) for name, value in values.items()}


def _as_one(value: Any) -> Any:
    """A list with the words of a substitution, ``$(expr 16 / $n)``, as the text that it is."""
    if isinstance(value, list) and str(value[0]).startswith("$("):
        return " ".join(map(str, value))
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value(word: str) -> Any:
    """A word as argparse reads it: a number or a truth value where it is one, JSON where it looks like it."""
    try:
        value = parse_yaml(word, "argument").value
    except FileInputError:
        return word
    is_text = isinstance(value, bool) and word.lower() not in ("true", "false")
    return word if is_text or (isinstance(value, dict) and not word.startswith("{")) else value


@frozen_dataclass
class TrainerFile:
    """A file as it was read.

    Attributes:
        options: of a plan, as the file gives them; of an estimate those of the batch and checkpointing too.
        keys: the key of the file that gives an option.
        engine: ``deepspeed``: a DeepSpeed file's path, or its contents; ``fsdp``: arguments of a Trainer with
            FSDP; neither: the trainer runs without an engine.
        not_modelled: keys that count and are not counted -> what of them.
        unknown: keys that no version of the trainer has.
        stage: how the trainer calls what it trains for: ``sft``, ``dpo``; empty: it has one command for all.
        words: the command of a shell script.
        refused: why no plan is made for what it trains; empty: one is.
    """

    path: str
    trainer: TrainerKeys
    document: Document
    options: Mapping[str, Any]
    keys: Mapping[str, str]
    engine: Mapping[str, Any]
    not_modelled: Mapping[str, str]
    unknown: tuple[str, ...]
    stage: str = ""
    words: tuple[str, ...] = ()
    refused: str = ""

    @property
    def is_script(self) -> bool:
        """Whether it is a shell script, of whose command the arguments are read."""
        return self.path.endswith(SCRIPT_ENDING)

    def to_dict(self) -> dict[str, Any]:
        """JSON of it, as it is published."""
        return {
            "path": self.path, "trainer": self.trainer.name, "options": dict(self.options),
            "not_modelled": dict(self.not_modelled), "unknown": list(self.unknown),
        }  # fmt: skip

    @property
    def command(self) -> tuple[str, ...]:
        """The words that train with the file; those of a script's own command."""
        return self.words or KINDS[self.trainer.name].command_with(self.path, self.stage)


_NO_TRAINERS = {"distributed_type": "accelerate", "zero_optimization": "deepspeed"}
"""A key of a file that configures what a trainer runs under -> the option that reads it."""


def read_by(option: str, path: str) -> str:
    """Say of a file that configures what a trainer runs under which option reads it."""
    return (
        f"{path}: is no trainer's file: `zerokit estimate --{option} {path}` estimates it, and "
        f"`zerokit plan --against {path}` compares a plan with it"
    )


def read_trainer_file(path: str, kind: str | None = None) -> TrainerFile:
    """Read a file; ``kind``: the trainer's name, where its keys do not tell. Raises InputError: it is no
    trainer's. FileInputError: it cannot be read."""
    if kind is not None and kind not in KINDS:
        raise InputError(f"⟨from⟩ {kind}: use one of {', '.join(KINDS)}")
    text, stage, words = read_text(path), "", tuple[str, ...]()
    if path.endswith(SCRIPT_ENDING):
        document, found = script_document(path, text), _command_in(text)
        assert found is not None
        kind, words = kind or found[0], found[1]
        stage = words[1]
    else:
        document = parse_yaml(text, path)
    value = document.value
    if not isinstance(value, dict):
        raise document.error((), "a trainer's file is a mapping of keys")
    trainer = trainers()[kind] if kind else trainer_of(value)
    if trainer is None:
        if option := next((option for key, option in _NO_TRAINERS.items() if key in value), None):
            raise InputError(read_by(option, path))
        raise InputError(
            f"{path}: no two of its keys are one trainer's alone; say whose file it is with ⟨from⟩: "
            f"{', '.join(KINDS)}"
        )
    row = KINDS[trainer.name]
    says = Says(trainer, {str(key): one for key, one in value.items()}, stage)
    row.asks(says)
    says.take_direct(row.direct)
    says.account()
    return TrainerFile(
        path=path,
        trainer=trainer,
        document=document,
        options={name: value for name, value in says.options.items() if value is not None},
        keys=says.keys,
        engine=says.engine,
        not_modelled=says.not_modelled,
        unknown=says.unknown,
        stage=says.stage,
        words=words,
        refused=says.refused,
    )


def as_arguments(path: str) -> tuple[str, ...]:
    """What ms-swift hands to a worker in place of a file (4.6, cli/main.py, ``parse_yaml_args``). Raises
    FileInputError: it cannot be read, or is no mapping."""
    document = load_yaml(path)
    if not isinstance(document.value, dict):
        raise document.error((), "a trainer's file is a mapping of keys")
    words: list[str] = []
    for key, value in document.value.items():
        if key != "ENV":
            words.append(f"--{key}")
            words += map(str, value) if isinstance(value, list) else [_as_argument(value)]
    return tuple(words)


def _as_argument(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
