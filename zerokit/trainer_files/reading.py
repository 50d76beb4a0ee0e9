"""Reads a trainer's own file: what it asks for as a plan's options, and what of it no answer counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError
from zerokit.strictload import Document, load_yaml, parse_yaml, read_text
from zerokit.trainer_files.keys import TrainerKeys, trainer_of, trainers
from zerokit.trainer_files.kinds import KINDS
from zerokit.trainer_files.says import Says
from zerokit.trainer_files.shell import command_in
from zerokit.values import frozen_dataclass


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
        return self.path.endswith(".sh")

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


def read_trainer_file(path: str, kind: str | None = None) -> TrainerFile:
    """Read a file.

    Args:
        kind: the trainer's name, where its keys do not tell.

    Raises:
        InputError: it is no trainer's.
        FileInputError: it cannot be read.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"⟨from⟩ {kind}: use one of {', '.join(KINDS)}")
    text, stage, words = read_text(path), "", tuple[str, ...]()
    if path.endswith(".sh"):
        found = command_in(text, KINDS)
        if found is None:
            raise InputError(f"{path}: has no command of {', '.join(KINDS)} that trains")
        kind, words = kind or found[0], found[1]
        stage, document = words[1], Document(path=path, text=text, value=found[2])
    else:
        document = parse_yaml(text, path)
    value = document.value
    if not isinstance(value, dict):
        raise document.error((), "a trainer's file is a mapping of keys")
    trainer = trainers()[kind] if kind else trainer_of(value)
    if trainer is None:
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
    """What ms-swift hands to a worker in place of a file (4.6, cli/main.py, ``parse_yaml_args``).

    Raises:
        FileInputError: it cannot be read, or is no mapping.
    """
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
