"""Mistakes that a JSON Schema must catch, made one at a time in DeepSpeed configurations that work.

Wrong types, unknown keys, values outside a choice or a range. A mistake is made at one of the places of the
file where it applies, drawn by a seed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerokit.linter.deepspeed.tables import key_list

Path = tuple[str, ...]


def mistakes(config: dict[str, Any], seed: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and broken configuration for every mistake that applies; ``seed`` says where in the file."""
    for kind, change in _CHANGES.items():
        broken = copy.deepcopy(config)
        if change(broken, random.Random(f"{seed} {kind}")) is not None and broken != config:
            yield kind, broken


def paths(config: Mapping[str, Any], prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key of a configuration with its value, nested ones too."""
    for key, value in config.items():
        yield (*prefix, key), value
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


def _parent(config: dict[str, Any], path: Path) -> dict[str, Any]:
    for part in path[:-1]:
        config = config[part]
    return config


def _entry(path: Path) -> Mapping[str, Any]:
    block = key_list()["blocks"].get(".".join(path[:-1]), {"keys": {}})
    entry: Mapping[str, Any] = block["keys"].get(path[-1], {"kind": "?"})
    return entry


Change = Callable[[dict[str, Any], random.Random], Path | None]


def _at(wanted: Callable[[Path, Any], bool], new: Callable[[Any, random.Random], Any]) -> Change:
    """Give one of the keys that ``wanted`` picks another value."""

    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        key_paths = [(path, value) for path, value in paths(config) if wanted(path, value)]
        if not key_paths:
            return None
        path, value = chance.choice(key_paths)
        _parent(config, path)[path[-1]] = new(value, chance)
        return path

    return change


def _renamed(wanted: Callable[[Path, Any], bool], new: Callable[[str, random.Random], str]) -> Change:
    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        key_paths = [path for path, value in paths(config) if wanted(path, value)]
        if not key_paths:
            return None
        path = chance.choice(key_paths)
        parent = _parent(config, path)
        name = new(path[-1], chance)
        if name == path[-1] or name in parent:
            return None
        items = [(name if key == path[-1] else key, value) for key, value in parent.items()]
        parent.clear()
        parent.update(items)
        return (*path[:-1], name)

    return change


def _typo(word: str, chance: random.Random) -> str:
    at = chance.randrange(1, len(word))
    kind = chance.choice(("drop", "double", "swap", "replace"))
    if kind == "drop":
        return word[:at] + word[at + 1 :]
    if kind == "double":
        return word[:at] + word[at] + word[at:]
    if kind == "swap" and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + chance.choice("qxzj") + word[at + 1 :]


def _is(kind: str) -> Callable[[Path, Any], bool]:
    return lambda path, value: _entry(path)["kind"] == kind and value != "auto"


def _refused(path: Path, value: Any) -> bool:
    return key_list()["blocks"].get(".".join(path[:-1]), {}).get("unknown") == "refused"


def _top(path: Path, value: Any) -> bool:
    return len(path) == 1 and path[0] in key_list()["blocks"][""]["keys"]


def _set(dotted: str, value: Any, *, needs: str = "") -> Change:
    """Write one setting where the key ``needs`` is there."""

    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        if needs and needs not in {".".join(path) for path, _ in paths(config)}:
            return None
        *blocks, key = dotted.split(".")
        block = config
        for part in blocks:
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                return None
        block[key] = copy.deepcopy(value)
        return (*blocks, key)

    return change


def _known_key(path: Path, value: Any) -> bool:
    return _entry(path)["kind"] != "?" and len(path[-1]) > 4


_CHANGES: dict[str, Change] = {
    "typo-in-top-key": _renamed(lambda p, v: _top(p, v) and len(p[0]) > 4, _typo),
    "typo-in-refused-key": _renamed(lambda p, v: _refused(p, v) and _known_key(p, v), _typo),
    "upper-case-key": _renamed(_known_key, lambda word, _: word.upper()),
    "hyphens-in-key": _renamed(
        lambda p, v: _known_key(p, v) and "_" in p[-1], lambda w, _: w.replace("_", "-")
    ),
    "foreign-key-in-block": _set("zero_optimization.turbo_mode", True, needs="zero_optimization"),
    "foreign-key-at-top": _set("turbo_mode", True),
    "number-as-word": _at(_is("integer"), lambda v, _: "many"),
    "fraction-in-integer": _at(lambda p, v: _is("integer")(p, v) and _refused(p, v), lambda v, _: 0.5),
    "list-for-number": _at(_is("integer"), lambda v, _: [v]),
    "true-for-number": _at(lambda p, v: _is("integer")(p, v) and v != 1, lambda v, _: True),
    "null-for-number": _at(lambda p, v: _is("integer")(p, v) and _refused(p, v), lambda v, _: None),
    "boolean-as-word": _at(_is("boolean"), lambda v, _: "always"),
    "number-for-boolean": _at(lambda p, v: _is("boolean")(p, v) and _refused(p, v), lambda v, _: 3),
    "list-for-boolean": _at(_is("boolean"), lambda v, _: []),
    "object-for-boolean": _at(_is("boolean"), lambda v, _: {"enabled": True}),
    "text-for-block": _at(lambda p, v: _top(p, v) and isinstance(v, dict), lambda v, _: "on"),
    "list-for-block": _at(lambda p, v: _top(p, v) and isinstance(v, dict), lambda v, _: [v]),
    "true-for-block": _at(
        lambda p, v: _top(p, v) and isinstance(v, dict) and p[0] != "zero_optimization", lambda v, _: True
    ),
    "outside-choice": _at(_is("choice"), lambda v, _: "elsewhere"),
    "choice-in-capitals": _at(
        lambda p, v: _is("choice")(p, v) and p[-1] == "device", lambda v, _: str(v).upper()
    ),
    "negative-size": _at(
        lambda p, v: _is("integer")(p, v) and bool({"minimum", "above"} & set(_entry(p))), lambda v, _: -5
    ),
    "beyond-maximum": _at(lambda p, v: "maximum" in _entry(p), lambda v, _: 7.5),
    "params-as-list": _at(lambda p, v: p[1:] == ("params",), lambda v, _: [v]),
    "stage-4": _at(lambda p, v: p[-1] == "stage" and len(p) == 2, lambda v, _: 4),
    "stage-as-word": _at(lambda p, v: p[-1] == "stage" and len(p) == 2, lambda v, _: "three"),
    "micro-batch-zero": _at(lambda p, v: p == ("train_micro_batch_size_per_gpu",), lambda v, _: 0),
    "offload-to-gpu": _set(
        "zero_optimization.offload_optimizer", {"device": "cuda"}, needs="zero_optimization"
    ),
    "offload-as-true": _set("zero_optimization.offload_optimizer", True, needs="zero_optimization"),
    "offload-as-text": _set("zero_optimization.offload_optimizer", "cpu", needs="zero_optimization"),
    "ratio-2": _set(
        "zero_optimization.offload_optimizer.ratio", 2, needs="zero_optimization.offload_optimizer.device"
    ),
}
