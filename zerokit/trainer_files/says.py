"""A trainer's file as it is read: which of its keys were looked at, and what of them is not modelled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zerokit.trainer_files.keys import Key, TrainerKeys

_COMPUTED = re.compile(r"\$[\w({]")
"""Variables, of the shell or of the environment."""


def is_computed(value: object) -> bool:
    """Whether a shell or an environment gives the value."""
    return isinstance(value, str) and _COMPUTED.search(value) is not None


class Says:
    """The values of a file, and what became of each: a key that was asked for counts.

    Attributes:
        options: of a plan, and what the file gives them.
        keys: the file's key of an option.
        used: keys that were asked for.
        not_modelled: key -> what of it is left out of the answer.
        engine: a DeepSpeed file, by its path or whole, under ``deepspeed``; the Trainer's arguments with FSDP
            under ``fsdp``.
        refused: why no plan is made for what the file trains; empty: one is.
    """

    def __init__(self, trainer: TrainerKeys, values: Mapping[str, Any], stage: str = "") -> None:
        self.trainer, self.values, self.stage = trainer, values, stage
        self.options: dict[str, Any] = {}
        self.keys: dict[str, str] = {}
        self.used: set[str] = set()
        self.not_modelled: dict[str, str] = {}
        self.engine: dict[str, Any] = {}
        self.refused = ""

    def __call__(self, key: str, default: object = None) -> Any:
        """The value of a key; where the file lacks it, that of the trainer, or ``default``."""
        self.used.add(key)
        value, known = self.values.get(key), self.trainer.keys.get(key)
        if is_computed(value):
            self.leave_out(key, f"{value} is computed elsewhere")
            return default
        elif known is not None and not _is_shaped(value, known):
            self.leave_out(key, f"it takes no {_SHAPES.get(type(value), 'single value')}")
            return default
        if value is not None:
            return value
        otherwise = known.default_of(self.stage) if known is not None else None
        return default if otherwise is None else otherwise

    def is_on(self, key: str) -> bool:
        """Whether a switch is on; trainers read ``"true"`` as YAML reads it."""
        value = self(key)
        return value.strip().lower() in ("true", "1", "yes", "on") if isinstance(value, str) else bool(value)

    def take(self, option: str, key: str, value: object) -> None:
        """Give a plan's option a value, which a key says."""
        self.options[option], self.keys[option] = value, key

    def take_direct(self, direct: Mapping[str, tuple[str, ...]]) -> None:
        """Take what one key says as an option does: option -> its key, and older names of it."""
        for option, names in direct.items():
            key = next((name for name in names if self.values.get(name) is not None), names[0])
            if option not in self.options and (value := self(key)) not in (None, ""):
                self.take(option, key, value)

    def take_one(self, option: str, key: str, meant: Mapping[str, str], otherwise: str = "") -> None:
        """Take what a value means as the option's; one that means nothing is counted ``otherwise``."""
        value = self(key)
        if (found := meant.get(str(value))) is not None:
            self.take(option, key, found)
        elif value and value != "auto":
            self.leave_out(key, f"counted as {otherwise}")

    def leave_out(self, key: str, what: str = "") -> None:
        """Name a key as one that the answer does not count, with ``what`` is not counted of it."""
        self.used.add(key)
        self.not_modelled.setdefault(key, what)

    def refuse(self, key: str, what: str) -> None:
        """Say that no plan is made for what a key asks for."""
        self.used.add(key)
        self.refused = self.refused or f"{key}: {self.values.get(key)}: {what} is not modelled"

    def account(self) -> None:
        """Name every key that was not asked for, counts, and is set to something."""
        for key, value in self.values.items():
            known = self.trainer.keys.get(key)
            if key in self.used or known is None or known.irrelevant or is_off(value, known, self.stage):
                continue
            self.not_modelled.setdefault(key, "")

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that no known version of the trainer has."""
        return tuple(key for key in self.values if key not in self.trainer.keys and key not in self.used)


_SHAPES: Mapping[type, str] = {dict: "mapping", list: "list"}


def _is_shaped(value: object, key: Key) -> bool:
    """Whether a value is a mapping, or a list, where its key takes one; one value may stand for a list."""
    kinds = {*key.kind.split("|")}
    if value is None or "any" in kinds:
        return True
    shape = _SHAPES.get(type(value))
    return shape in kinds if shape is not None else kinds != {"mapping"}


def is_off(value: object, key: Key, stage: str) -> bool:
    """Whether a value does nothing: it is empty, off, or what the trainer does anyway."""
    return (
        value in (None, False, "", 0, "none", "None") or value in ([], {}) or value == key.default_of(stage)
    )
