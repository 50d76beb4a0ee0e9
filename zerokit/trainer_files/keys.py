"""The keys that trainers' files may have, by trainer; ``python -m tools.trainer_keys`` writes them."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from zerokit.values import frozen_dataclass

_FOLDER = pathlib.Path(__file__).with_name("keys")
_LEAST_KEYS = 2
_OF_SCRIPTS = frozenset({"base_model", "train_on_inputs", "val_set_size"})
"""Keys of axolotl's that it took over from a script (alpaca-lora's finetune.py), as others did."""
NAMES = ("axolotl", "llamafactory", "swift", "trl")
"""As ``--from`` takes them."""
BASE = "transformers"
"""Whose arguments LLaMA-Factory, ms-swift and TRL take, too."""


@frozen_dataclass
class Key:
    """One key of a trainer's file.

    Attributes:
        kind: ``text``, ``integer``, ``number``, ``boolean``, ``list``, ``mapping`` or ``any``; ``|`` stands
            between several.
        choices: all values that it takes; empty: others, too.
        default: where its trainer's source states it as a value and all stages share it.
        defaults: by stage, where they differ.
        least: the least value (``above``: greater than), ``most`` and ``below`` likewise.
        since: the first release of those read that has it; empty: the oldest has.
        until: the last release that had it; empty: the newest has.
        of: stages, or plugins of axolotl, that have it; empty: all.
        irrelevant: counts for neither memory nor time of a training step.
        keys: of its block, or of each block in its list.
        not_null: its trainer refuses a null.
        open: the block takes other keys, too.
        of_base: Transformers' own; ``since`` and ``until`` are its releases.
    """

    name: str
    kind: str
    choices: tuple[Any, ...] = ()
    default: Any = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    since: str = ""
    until: str = ""
    of: tuple[str, ...] = ()
    irrelevant: bool = False
    keys: Mapping[str, Key] = field(default_factory=dict)
    not_null: bool = False
    open: bool = False
    of_base: bool = False

    def default_of(self, stage: str) -> Any:
        """Default in a stage; ``None``: none that the source states as a value."""
        return self.defaults.get(stage, self.default)


@frozen_dataclass
class TrainerKeys:
    """One trainer's keys.

    Attributes:
        title: how its users write it.
        source: where its keys are defined, with the releases.
        versions: of the releases that were read, the oldest first.
        keys: those of Transformers among them, where it takes them.
        parses_arguments: its file goes into a subclass of TrainingArguments, so that their checks hold.
    """

    name: str
    title: str
    source: str
    versions: tuple[str, ...]
    keys: Mapping[str, Key]
    parses_arguments: bool = False


@functools.cache
def trainers() -> Mapping[str, TrainerKeys]:
    """Keys of all trainers, by name."""
    return {name: trainer(name) for name in NAMES}


@functools.cache
def trainer(name: str) -> TrainerKeys:
    """One of :data:`NAMES`, or :data:`BASE`, by which no trainer is told."""
    row = _row(name)
    keys = {key: _key(key, value) for key, value in row["keys"].items()}
    if "base" in row:
        stages, base = tuple(row["base"]["stages"]), trainer(BASE).keys
        both = {key: _widened(value, base[key], stages) for key, value in keys.items() if key in base}
        inherited = {key: replace(value, of_base=True, of=stages) for key, value in base.items()}
        keys = {**inherited, **keys, **both}
    return TrainerKeys(
        name=name, title=row["title"], source=row["source"], versions=tuple(row["versions"]), keys=keys,
        parses_arguments="base" in row,
    )  # fmt: skip


@functools.cache
def _row(name: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return row


def _widened(key: Key, base: Key, stages: tuple[str, ...]) -> Key:
    """A key that some stages define anew, and the others take from Transformers."""
    of = tuple(sorted({*key.of, *stages})) if key.of and stages else ()
    if key.of:
        key = replace(
            key, default=base.default, defaults={**dict.fromkeys(key.of, key.default), **key.defaults},
            choices=(*key.choices, *base.choices) if key.choices and base.choices else (),
        )  # fmt: skip
    return replace(key, irrelevant=key.irrelevant or base.irrelevant, of=of)


def _key(name: str, row: Mapping[str, Any]) -> Key:
    given: dict[str, Any] = dict(row)
    given |= {word: tuple(row[word]) for word in ("choices", "of") if word in row}
    given["keys"] = {inner: _key(inner, value) for inner, value in row.get("keys", {}).items()}
    return Key(name=name, **given)


@functools.cache
def _distinctive() -> Mapping[str, frozenset[str]]:
    """The keys that one trainer alone has, by trainer."""
    keys = {name: _row(name)["keys"].keys() for name in (*NAMES, BASE)}
    # a model's own configuration has those of Megatron
    of_models = {
        key for name in NAMES for key, row in _row(name)["keys"].items() if row.get("of") == ["megatron"]
    }
    others = {name: set().union(*(keys[other] for other in keys if other != name)) for name in NAMES}
    return {name: frozenset(keys[name] - others[name] - of_models - _OF_SCRIPTS) for name in NAMES}


def trainer_of(value: Mapping[Any, Any]) -> TrainerKeys | None:
    """Trainer whose file it is: two keys at least that only one trainer has, and more than any other's."""
    counts = sorted(((len(keys & value.keys()), name) for name, keys in _distinctive().items()), reverse=True)
    (most, name), (second, _) = counts[:2]
    return trainer(name) if most >= _LEAST_KEYS and most > second else None
