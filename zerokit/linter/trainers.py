"""Trainers with files of their own, told by keys that no other reader has.

``trainers.json`` lists keys that only this trainer's schema defines, and that a script of one's own would
hardly have: no key of TrainingArguments, and no two of the scripts that many copied (alpaca-lora's).
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from zerokit.values import frozen_dataclass

_LEAST_KEYS = 2


@frozen_dataclass
class Trainer:
    """One trainer.

    Attributes:
        title: how its users write it.
        source: where its keys are defined, with the version.
        parses_arguments: the file goes into a subclass of TrainingArguments, so that their checks hold.
    """

    title: str
    source: str
    parses_arguments: bool
    keys: frozenset[str]


@functools.cache
def trainers() -> Mapping[str, Trainer]:
    """By name, as ``--trainer`` takes it."""
    rows = json.loads(pathlib.Path(__file__).with_name("trainers.json").read_text(encoding="utf-8"))
    return {name: Trainer(**{**row, "keys": frozenset(row["keys"])}) for name, row in rows.items()}


def trainer_of(value: Mapping[str, Any]) -> Trainer | None:
    """Whose file it is: two keys at least that only one trainer has, and more than any other's."""
    counts = sorted(
        ((len(trainer.keys & value.keys()), name) for name, trainer in trainers().items()), reverse=True
    )
    (most, name), (second, _) = counts[:2]
    return trainers()[name] if most >= _LEAST_KEYS and most > second else None
