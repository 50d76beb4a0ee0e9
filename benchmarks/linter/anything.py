"""Mistakes that nobody had a rule in mind for: any value, name, place or piece of text, anywhere.

Where :mod:`benchmarks.linter.mutations` holds the mistakes people make, this holds what a key can meet at
all. Only the readers can tell which of them matter: one that every reader still accepts may be no mistake.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.linter.mutations import Mutation, Path, paths
from zerokit.linter.deepspeed.tables import key_list
from zerokit.strictload import parse_json

_POOL: Mapping[str, Any] = {
    "null": None, "true": True, "false": False, "zero": 0, "one": 1, "minus-one": -1, "half": 0.5,
    "fraction": 2.5, "huge": 1e30, "float": 16.0, "empty-text": "", "word": "none", "default": "default",
    "auto": "auto", "auto-capital": "Auto", "number-text": "16", "exponent-text": "5e8", "bytes-text": "2GB",
    "true-text": "True", "cpu": "cpu", "dtype": "bf16", "empty-list": [], "list": [1, 2], "texts": ["cpu"],
    "empty-object": {}, "object": {"enabled": True}, "params": {"type": "x", "params": {}},
}  # fmt: skip
"""What stands in place of a value."""

_OPTIMIZERS = (
    "adamw_torch", "adamw_bnb_8bit", "Adam8bit", "FusedAdam", "DeepSpeedCPUAdam", "CPUAdam",
    "Ranger", "RMSProp", "Adafactor", "Adamw", "ADAMW", "lion", "LAMB", "Sophia", "torch.optim.AdamW",
    "adamW_torch_fused", "SparseAdam", "LBFGS", "RAdam", "AdaGrad", "MuAdam", "Muon", "sgd", "SGD",
)  # fmt: skip
_SCHEDULERS = (
    "linear", "constant", "WarmupLinearLR", "warmup_lr", "WarmupDecay", "CosineAnnealingLR", "OneCycleLR",
    "StepLR", "LinearLR", "cosine_with_restarts", "WarmUpLR", "Warmup", "LambdaLR", "polynomial", "ONECYCLE",
)  # fmt: skip
_RENAMES: Mapping[str, Callable[[str], str]] = {
    "camel-case": lambda word: re.sub(r"_(\w)", lambda match: match[1].upper(), word),
    "prefix": lambda word: f"ds_{word}",
    "suffix": lambda word: f"{word}_",
    "plural": lambda word: word.removesuffix("s") if word.endswith("s") else f"{word}s",
    "run-together": lambda word: word.replace("_", ""),
    "first-part-lost": lambda word: word.partition("_")[2] or word,
    "last-part-lost": lambda word: word.rpartition("_")[0] or word,
    "parts-swapped": lambda word: "_".join(reversed(word.split("_"))),
    "space-after": lambda word: f"{word} ",
    "capital": lambda word: word[:1].upper() + word[1:],
    "stage-prefix": lambda word: word.removeprefix("stage3_") if "stage3" in word else f"stage3_{word}",
    "16-bit": lambda word: word.replace("16bit", "fp16").replace("_gpu", "_device").replace("16", "32"),
}


def of_anything(text: str, seed: str) -> Iterator[Mutation]:
    """Mutations of a DeepSpeed JSON, one of each kind that applies; ``seed`` says where in the file."""
    config = parse_json(text, strict=False).value
    changes: dict[str, Callable[[dict[str, Any], random.Random], Path | None]] = {
        **{f"any-value-{name}": _value(value) for name, value in _POOL.items()},
        **{f"any-key-{name}": _new_key(value) for name, value in _POOL.items()},
        **{f"any-name-{name}": _name(change) for name, change in _RENAMES.items()},
        "any-optimizer": _one_of("optimizer", _OPTIMIZERS),
        "any-scheduler": _one_of("scheduler", _SCHEDULERS),
        "any-key-lost": _lose, "any-key-moved-up": _move_up, "any-key-moved-down": _move_down,
        "any-block-from-outside": _outside,
    }  # fmt: skip
    for kind, change in changes.items():
        broken = copy.deepcopy(config)
        path = change(broken, random.Random(f"{seed} {kind}"))
        if path is None or (broken == config and json.dumps(broken) == json.dumps(config)):
            continue
        written = json.dumps(broken, indent=4)
        keys = parse_json(written, strict=False).keys
        lines = {location.line for key, location in keys.items() if key[: len(path)] == path and path}
        yield Mutation(kind, written, frozenset(lines), sure=False)
    yield from _wrapped(config)
    yield from _text(json.dumps(config, indent=4), random.Random(f"{seed} text"))


def _parent(config: dict[str, Any], path: Path) -> dict[str, Any]:
    for part in path[:-1]:
        config = config[part]
    return config


def _value(value: Any) -> Callable[[dict[str, Any], random.Random], Path | None]:
    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        path, _ = chance.choice(list(paths(config)))
        _parent(config, path)[path[-1]] = copy.deepcopy(value)
        return path

    return change


def _new_key(value: Any) -> Callable[[dict[str, Any], random.Random], Path | None]:
    """A key that DeepSpeed knows and the file lacks, in a block that is there."""

    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        there = {(): config} | {path: block for path, block in paths(config) if isinstance(block, dict)}
        key_paths = [
            (*path, key)
            for path, block in there.items()
            if ".".join(path) in key_list()["blocks"]
            for key in key_list()["blocks"][".".join(path)]["keys"]
            if key not in block
        ]
        if not key_paths:
            return None
        path = chance.choice(key_paths)
        _parent(config, path)[path[-1]] = copy.deepcopy(value)
        return path

    return change


def _name(new: Callable[[str], str]) -> Callable[[dict[str, Any], random.Random], Path | None]:
    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        key_paths = [path for path, _ in paths(config) if new(path[-1]) != path[-1] and len(path[-1]) > 3]
        if not key_paths:
            return None
        path = chance.choice(key_paths)
        parent, name = _parent(config, path), new(path[-1])
        if name in parent:
            return None
        items = [(name if key == path[-1] else key, value) for key, value in parent.items()]
        parent.clear()
        parent.update(items)
        return (*path[:-1], name)

    return change


def _one_of(block: str, words: tuple[str, ...]) -> Callable[[dict[str, Any], random.Random], Path | None]:
    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        if not isinstance(config.get(block), dict) or "type" not in config[block]:
            return None
        config[block]["type"] = chance.choice(words)
        return (block, "type")

    return change


def _lose(config: dict[str, Any], chance: random.Random) -> Path | None:
    path, _ = chance.choice(list(paths(config)))
    del _parent(config, path)[path[-1]]
    return ()


def _move_up(config: dict[str, Any], chance: random.Random) -> Path | None:
    key_paths = [path for path, _ in paths(config) if len(path) > 1]
    if not key_paths:
        return None
    path = chance.choice(key_paths)
    above = _parent(config, path[:-1])
    if path[-1] in above:
        return None
    above[path[-1]] = _parent(config, path).pop(path[-1])
    return (*path[:-2], path[-1])


def _move_down(config: dict[str, Any], chance: random.Random) -> Path | None:
    blocks = [path for path, value in paths(config) if isinstance(value, dict)]
    if not blocks:
        return None
    block = chance.choice(blocks)
    beside = _parent(config, block)
    others = [key for key in beside if key != block[-1] and key not in beside[block[-1]]]
    if not others:
        return None
    key = chance.choice(others)
    beside[block[-1]][key] = beside.pop(key)
    return (*block, key)


_OUTSIDE: Mapping[str, Any] = {
    "model": {"name": "llama"}, "trainer": {"max_epochs": 3}, "learning_rate": 1e-4, "num_gpus": 8,
    "gradient_checkpointing": True, "fsdp": "full_shard", "lora": {"r": 8}, "seed": 42, "batch_size": 4,
    "mixed_precision": "bf16", "max_steps": 100, "zero_force_ds_cpu_optimizer ": False, "use_cache": False,
}  # fmt: skip


def _outside(config: dict[str, Any], chance: random.Random) -> Path | None:
    key = chance.choice(list(_OUTSIDE))
    if key in config:
        return None
    config[key] = copy.deepcopy(_OUTSIDE[key])
    return (key,)


def _wrapped(config: dict[str, Any]) -> Iterator[Mutation]:
    for name, value in {
        "in-a-list": [config], "below-deepspeed": {"deepspeed": config}, "as-text": json.dumps(config),
        "below-deepspeed-config": {"deepspeed_config": config}, "empty": {}, "null": None,
    }.items():  # fmt: skip
        yield Mutation(f"any-whole-{name}", json.dumps(value, indent=4), frozenset(), sure=False)


def _text(text: str, chance: random.Random) -> Iterator[Mutation]:
    lines = text.splitlines()
    inner = [index for index, line in enumerate(lines) if '": ' in line and not line.rstrip().endswith("{")]
    if not inner:
        return
    at = chance.choice(inner)
    key, _, value = lines[at].partition(":")
    comma = "," if value.endswith(",") else ""
    for kind, line in {
        "equals": lines[at].replace(":", " =", 1), "no-colon": lines[at].replace(":", "", 1),
        "two-commas": f"{lines[at].rstrip(',')},,", "semicolon": f"{lines[at].rstrip(',')};",
        "smart-quotes": lines[at].replace('"', "“", 1).replace('"', "”", 1), "none": f"{key}: None{comma}",
        "hex": f"{key}: 0x10{comma}", "underscores": f"{key}: 1_000{comma}",
        "no-zero": f"{key}: .5{comma}", "plus": f"{key}: +1{comma}", "leading-zero": f"{key}: 007{comma}",
        "infinity": f"{key}: Infinity{comma}",
        "beyond-float": f"{key}: 1e999{comma}", "bare-word": f"{key}: auto{comma}",
        "no-value": f"{key}:{comma}",
        "bad-escape": f'{key}: "C:\\data"{comma}', "newline-in-text": f'{key}: "a\nb"{comma}',
        "hash-comment": f"{lines[at]} # ours", "block-comment": f"{lines[at]} /* ours */",
        "open-comment": f"{lines[at]} /* ours", "variable": f"{key}: ${{BATCH}}{comma}",
        "jinja": f"{key}: {{{{ batch }}}}{comma}", "percent": f"{key}: 50%{comma}",
        "power": f"{key}: 5**8{comma}",
        "yes": f"{key}: yes{comma}", "python-tuple": f"{key}: (0.9, 0.95){comma}",
        "product": f"{key}: 2 * 4{comma}",
    }.items():  # fmt: skip
        broken = "\n".join([*lines[:at], line, *lines[at + 1 :]])
        yield Mutation(f"any-text-{kind}", broken, frozenset({at + 1, at + 2}), sure=False)
    yield Mutation("any-text-extra-brace", f"{text}\n}}", frozenset({len(lines), len(lines) + 1}), sure=False)
    yield Mutation("any-text-twice", f"{text}\n{text}", frozenset({len(lines), len(lines) + 1}), sure=False)
    yield Mutation("any-text-no-first-brace", text.lstrip().removeprefix("{"), frozenset(), sure=False)
    yield Mutation("any-text-cut", text[: len(text) * 2 // 3], frozenset(), sure=False)
    yield Mutation("any-text-nothing", "", frozenset(), sure=False)
    yield Mutation("any-text-assigned", f"ds_config = {text}", frozenset({1}), sure=False)


def of_any_yaml(text: str, seed: str) -> Iterator[Mutation]:
    """Mutations of an accelerate YAML, line by line."""
    lines = text.rstrip().splitlines()
    plain = [index for index, line in enumerate(lines) if re.match(r"\s*\w+:\s*\S", line)]
    if not plain:
        return

    def at(kind: str, index: int, *new: str) -> Mutation:
        broken = "\n".join([*lines[:index], *new, *lines[index + 1 :]]) + "\n"
        return Mutation(kind, broken, frozenset(range(index + 1, index + 1 + len(new))), sure=False)

    for name, value in _YAML_POOL.items():
        index = random.Random(f"{seed} {name}").choice(plain)
        yield at(f"any-yaml-value-{name}", index, f"{lines[index].partition(':')[0]}: {value}")
    for name, new in _RENAMES.items():
        index = random.Random(f"{seed} name {name}").choice(plain)
        key, _, rest = lines[index].partition(":")
        renamed = key[: len(key) - len(key.lstrip())] + new(key.strip())
        if renamed != key:
            yield at(f"any-yaml-name-{name}", index, f"{renamed}:{rest}")
    chance = random.Random(f"{seed} text")
    yield at("any-yaml-lost", chance.choice(plain))
    index = chance.choice(plain)
    yield at("any-yaml-twice", index, lines[index], lines[index])
    yield at("any-yaml-no-space", index, lines[index].replace(": ", ":", 1))
    yield at("any-yaml-equals", index, lines[index].replace(":", " =", 1))
    yield at("any-yaml-indented", index, f"   {lines[index]}")
    yield at("any-yaml-tab", index, f"\t{lines[index]}")
    yield at("any-yaml-comma", index, f"{lines[index]},")
    yield at("any-yaml-open-quote", index, lines[index].replace(": ", ': "', 1))
    yield at("any-yaml-open-bracket", index, lines[index].replace(": ", ": [", 1))
    nested = [number for number in plain if lines[number].startswith(" ")]
    if nested:
        index = chance.choice(nested)
        yield at("any-yaml-moved-up", index, lines[index].lstrip())
    top = [number for number in plain if not lines[number].startswith(" ")]
    block = next((number for number, line in enumerate(lines) if line.startswith("deepspeed_config:")), None)
    if block is not None and top and lines[block].rstrip().endswith(":"):
        index = chance.choice(top)
        moved = [line for number, line in enumerate(lines) if number != index]
        where = moved.index(lines[block]) + 1
        broken = [*moved[:where], f"  {lines[index]}", *moved[where:]]
        lines_of_it = frozenset({where + 1})
        yield Mutation("any-yaml-moved-down", "\n".join(broken) + "\n", lines_of_it, sure=False)


_YAML_POOL: Mapping[str, str] = {
    "null": "null", "true": "true", "yes": "yes", "no": "no", "zero": "0", "one": "1", "minus-one": "-1",
    "half": "0.5", "float": "2.0", "empty": "''", "word": "none", "auto": "auto", "text-number": "'2'",
    "list": "[0, 1]", "object": "{a: 1}", "upper": "NONE", "huge": "99999999999", "tilde": "~", "cpu": "cpu",
    "dtype": "bfloat16", "on": "on", "exponent": "1e3",
}  # fmt: skip
