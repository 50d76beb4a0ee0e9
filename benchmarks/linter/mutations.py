"""Mistakes, made one at a time in files that work: what ``zerokit check`` is measured on.

Each mutation has a kind, the text of the broken file, and the line where the mistake stands. Kinds that
are about keys and values are made for every place in a file where they apply, and drawn from those.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.linter.deepspeed.tables import key_list
from zerokit.strictload import parse_json

Path = tuple[str, ...]


@dataclass(frozen=True)
class Mutation:
    """One broken file.

    Attributes:
        lines: where the mistake stands; none where it is what is missing.
        schema: what a JSON Schema must catch in it, if anything.
        sure: it is a mistake whatever the readers say.
    """

    kind: str
    text: str
    lines: frozenset[int]
    schema: str | None = None
    sure: bool = True


def of_json(text: str, seed: str) -> Iterator[Mutation]:
    """Every mutation of a DeepSpeed JSON that applies, one for each kind; ``seed`` says where in the file."""
    config = parse_json(text, strict=False).value
    for kind, change in {**_VALUES, **_SETTINGS}.items():
        broken = copy.deepcopy(config)
        path = change(broken, random.Random(f"{seed} {kind}"))
        if path is None or broken == config:
            continue
        written = json.dumps(broken, indent=4)
        keys = parse_json(written, strict=False).keys
        lines = {location.line for key, location in keys.items() if key[: len(path)] == path}
        yield Mutation(kind, written, frozenset(lines), _SCHEMA_KINDS.get(kind))
    yield from _texts(json.dumps(config, indent=4), random.Random(f"{seed} text"))


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


def _set(dotted: str, value: Any, *, needs: str | None = None, without: str | None = None) -> Change:
    """Write one setting; ``needs``: a key that must be there, ``without``: one that must not."""

    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        path = tuple(dotted.split("."))
        have = {".".join(path) for path, _ in paths(config)}
        have |= {f"{'.'.join(path)}={json.dumps(value)}" for path, value in paths(config)}
        have |= {f"{'.'.join(p)}=even" for p, v in paths(config) if type(v) is int and v > 1 and v % 2 == 0}
        if (needs and needs not in have) or (without and without in have):
            return None
        block = config
        for part in path[:-1]:
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                return None
        block[path[-1]] = copy.deepcopy(value)
        return path

    return change


def _drop(dotted: str, *others: str) -> Change:
    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        path = tuple(dotted.split("."))
        block = config
        for part in path[:-1]:
            block = block.get(part, {})
            if not isinstance(block, dict):
                return None
        if path[-1] not in block:
            return None
        del block[path[-1]]
        for other in others:
            config.pop(other, None)
        return path

    return change


def _without_stage(dotted: str) -> Change:
    """Drop what says the stage, where it is not the one that runs without it."""
    drop = _drop(dotted)

    def change(config: dict[str, Any], chance: random.Random) -> Path | None:
        zero = config.get("zero_optimization")
        return drop(config, chance) if isinstance(zero, dict) and zero.get("stage") not in (None, 0) else None

    return change


def _known_key(path: Path, value: Any) -> bool:
    return _entry(path)["kind"] != "?" and len(path[-1]) > 4


_VALUES: dict[str, Change] = {
    "typo-in-top-key": _renamed(lambda p, v: _top(p, v) and len(p[0]) > 4, _typo),
    "typo-in-refused-key": _renamed(lambda p, v: _refused(p, v) and _known_key(p, v), _typo),
    "typo-in-parameter": _renamed(
        lambda p, v: p[1:2] == ("params",) and len(p) == 3 and len(p[2]) > 4, _typo
    ),
    "upper-case-key": _renamed(_known_key, lambda word, _: word.upper()),
    "hyphens-in-key": _renamed(
        lambda p, v: _known_key(p, v) and "_" in p[-1], lambda w, _: w.replace("_", "-")
    ),
    "foreign-key-in-block": _set("zero_optimization.turbo_mode", True, needs="zero_optimization"),
    "foreign-key-at-top": _set("turbo_mode", True),
    "number-as-text": _at(_is("integer"), lambda v, _: str(v)),
    "number-as-word": _at(_is("integer"), lambda v, _: "many"),
    "fraction-in-integer": _at(lambda p, v: _is("integer")(p, v) and _refused(p, v), lambda v, _: 0.5),
    "list-for-number": _at(_is("integer"), lambda v, _: [v]),
    "true-for-number": _at(lambda p, v: _is("integer")(p, v) and v != 1, lambda v, _: True),
    "null-for-number": _at(lambda p, v: _is("integer")(p, v) and _refused(p, v), lambda v, _: None),
    "boolean-as-text": _at(_is("boolean"), lambda v, _: str(v).lower()),
    "boolean-as-word": _at(_is("boolean"), lambda v, _: "always"),
    "number-for-boolean": _at(lambda p, v: _is("boolean")(p, v) and _refused(p, v), lambda v, _: 3),
    "list-for-boolean": _at(_is("boolean"), lambda v, _: []),
    "object-for-boolean": _at(_is("boolean"), lambda v, _: {"enabled": True}),
    "text-for-block": _at(lambda p, v: _top(p, v) and isinstance(v, dict), lambda v, _: "on"),
    "list-for-block": _at(lambda p, v: _top(p, v) and isinstance(v, dict), lambda v, _: [v]),
    "true-for-block": _at(
        lambda p, v: _top(p, v) and isinstance(v, dict) and p[0] != "zero_optimization", lambda v, _: True
    ),
    "null-for-block": _at(
        lambda p, v: p in (("fp16",), ("optimizer",), ("zero_optimization",)), lambda v, _: None
    ),
    "outside-choice": _at(_is("choice"), lambda v, _: "elsewhere"),
    "choice-in-capitals": _at(
        lambda p, v: _is("choice")(p, v) and p[-1] == "device", lambda v, _: str(v).upper()
    ),
    "negative-size": _at(
        lambda p, v: _is("integer")(p, v) and bool({"minimum", "above"} & set(_entry(p))), lambda v, _: -5
    ),
    "beyond-maximum": _at(lambda p, v: "maximum" in _entry(p), lambda v, _: 7.5),
    "huge-number": _at(lambda p, v: _is("integer")(p, v) and _refused(p, v), lambda v, _: 10**30),
    "auto-in-flag": _at(lambda p, v: _is("boolean")(p, v) and p[-1] != "enabled", lambda v, _: "auto"),
    "parameter-as-text": _at(lambda p, v: p[1:] == ("params", "lr") and v != "auto", lambda v, _: str(v)),
    "betas-as-number": _at(lambda p, v: p[-1] == "betas", lambda v, _: 0.9),
    "three-betas": _at(lambda p, v: p[-1] == "betas", lambda v, _: [0.9, 0.95, 0.99]),
    "params-as-list": _at(lambda p, v: p[1:] == ("params",), lambda v, _: [v]),
    "stage-4": _at(lambda p, v: p[-1] == "stage" and len(p) == 2, lambda v, _: 4),
    "stage-as-word": _at(lambda p, v: p[-1] == "stage" and len(p) == 2, lambda v, _: "three"),
    "micro-batch-zero": _at(lambda p, v: p == ("train_micro_batch_size_per_gpu",), lambda v, _: 0),
    "accumulation-negative": _at(lambda p, v: p == ("gradient_accumulation_steps",), lambda v, _: -1),
}  # fmt: skip
_SETTINGS: dict[str, Change] = {
    "both-precisions": _set("fp16.enabled", True, needs="bf16.enabled=true"),
    "fp16-without-enabled": _drop("fp16.enabled"),
    "bf16-without-enabled": _drop("bf16.enabled"),
    "no-stage": _without_stage("zero_optimization.stage"),
    "no-zero": _without_stage("zero_optimization"),
    "no-batch": _drop("train_micro_batch_size_per_gpu", "train_batch_size"),
    "no-optimizer-type": _drop("optimizer.type"),
    "empty-optimizer-type": _set("optimizer.type", "", needs="optimizer.type"),
    "unknown-optimizer": _set("optimizer.type", "AdamW8bit", needs="optimizer.type"),
    "one-bit-optimizer": _set("optimizer.type", "OneBitAdam", needs="optimizer.type"),
    "optimizer-in-capitals": _set("optimizer.type", "SGd", needs="optimizer.type"),
    "foreign-parameter": _set("optimizer.params.fused", True, needs="optimizer.params"),
    "amsgrad": _set("optimizer.params.amsgrad", True, needs="optimizer.params"),
    "max-grad-norm-in-params": _set("optimizer.params.max_grad_norm", 1.0, needs="optimizer.params"),
    "lr-beside-params": _set("optimizer.lr", 0.1, needs="optimizer.params"),
    "unknown-scheduler": _set("scheduler.type", "cosine", needs="scheduler.type"),
    "scheduler-in-lower-case": _set("scheduler.type", "warmuplr", needs="scheduler.type"),
    "scheduler-without-params": _drop("scheduler.params"),
    "one-cycle-without-limits": _set("scheduler", {"type": "OneCycle", "params": {}}, needs="scheduler"),
    "decay-without-total": _set("scheduler", {"type": "WarmupDecayLR", "params": {}}, needs="scheduler"),
    "warmup-zero": _set("scheduler.params.warmup_num_steps", 0, needs="scheduler.params.warmup_num_steps"),
    "foreign-scheduler-parameter": _set("scheduler.params.gamma", 0.1, needs="scheduler.params"),
    "train-batch-odd": _set("train_batch_size", 10**6 + 1, needs="train_micro_batch_size_per_gpu=even"),
    "mixed-precision-at-top": _set("mixed_precision", "bf16"),
    "dtype-at-top": _set("dtype", "bf16"),
    "stage-at-top": _set("stage", 3),
    "zero-stage-at-top": _set("zero_stage", 3),
    "offload-at-top": _set("offload_optimizer", {"device": "cpu"}),
    "offload-short": _set("zero_optimization.offload", {"device": "cpu"}, needs="zero_optimization"),
    "cpu-offload-twice": _set(
        "zero_optimization.cpu_offload", True, needs="zero_optimization.offload_optimizer"
    ),
    "clipping-in-zero": _set("zero_optimization.gradient_clipping", 1.0, needs="zero_optimization"),
    "clipping-null": _set("gradient_clipping", None),
    "clipping-word": _set("gradient_clipping", "off"),
    "max-grad-norm-at-top": _set("max_grad_norm", 1.0),
    "steps-per-print-zero": _set("steps_per_print", 0),
    "sequence-parallel-text": _set("sequence_parallel_size", "2"),
    "loss-scale-negative": _set("fp16.loss_scale", -1, needs="fp16"),
    "loss-scale-window-zero": _set("fp16.loss_scale_window", 0, needs="fp16.enabled=true"),
    "grad-accum-float8": _set("data_types", {"grad_accum_dtype": "float8"}),
    "autocast-bfp16": _set("torch_autocast", {"enabled": True, "dtype": "bfp16"}, without="bf16"),
    "tag-validation-error": _set("checkpoint", {"tag_validation": "error"}),
    "communication-bfloat16": _set("communication_data_type", "bfloat16"),
    "allreduce-average": _set("gradient_allreduce_op", "average"),
    "log-level-loud": _set("log_level", "loud"),
    "elasticity-off": _set("elasticity", {"enabled": False}),
    "amp-off": _set("amp", {"enabled": False}),
    "sparse-gradients": _set("sparse_gradients", False),
    "compression": _set("compression_training", {}),
    "curriculum": _set("curriculum_learning", {"enabled": False}),
    "mics": _set("zero_optimization.mics_shard_size", 2, needs="zero_optimization"),
    "nvme-without-path": _set(
        "zero_optimization.offload_optimizer", {"device": "nvme"}, needs="zero_optimization.stage"
    ),
    "offload-to-gpu": _set(
        "zero_optimization.offload_optimizer", {"device": "cuda"}, needs="zero_optimization"
    ),
    "offload-as-true": _set("zero_optimization.offload_optimizer", True, needs="zero_optimization"),
    "offload-as-text": _set("zero_optimization.offload_optimizer", "cpu", needs="zero_optimization"),
    "ratio-2": _set(
        "zero_optimization.offload_optimizer.ratio", 2, needs="zero_optimization.offload_optimizer.device"
    ),
    "activation-key-misspelt": _set("activation_checkpointing.partition_activation", True),
    "aio-key-misspelt": _set("aio.thread_count", 1),
    "wall-clock-text": _set("wall_clock_breakdown", "false"),
    "auto-in-overlap": _set("zero_optimization.overlap_comm", "auto", needs="zero_optimization"),
    "auto-in-sub-group": _set("zero_optimization.sub_group_size", "auto", needs="zero_optimization"),
    "auto-in-loss-scale": _set("fp16.loss_scale", "auto", needs="fp16"),
    "auto-in-steps-per-print": _set("wall_clock_breakdown", "auto"),
    "prescale": _set("prescale_gradients", True, needs="zero_optimization.stage=2"),
    "micro-batch-short": _set("micro_batch_size", 4),
    "autotp-text": _set("tensor_parallel", {"autotp_size": "two"}),
    "hybrid-text": _set("hybrid_engine", "on"),
    "tensorboard-text": _set("tensorboard", {"enabled": "sure"}),
    "zenflow-ratio": _set(
        "zero_optimization.zenflow", {"topk_ratio": 2}, needs="zero_optimization.offload_optimizer.device"
    ),
}  # fmt: skip
_SCHEMA_KINDS = {
    **dict.fromkeys(
        ("number-as-word", "list-for-number", "true-for-number", "null-for-number", "boolean-as-word",
         "number-for-boolean", "list-for-boolean", "object-for-boolean", "text-for-block", "list-for-block",
         "true-for-block", "fraction-in-integer", "offload-as-true", "offload-as-text", "params-as-list"),
        "wrong type",
    ),
    **dict.fromkeys(
        ("typo-in-top-key", "typo-in-refused-key", "foreign-key-in-block", "foreign-key-at-top",
         "upper-case-key", "hyphens-in-key"),
        "unknown key",
    ),
    **dict.fromkeys(
        ("outside-choice", "choice-in-capitals", "stage-as-word", "stage-4", "offload-to-gpu"), "enumeration"
    ),
    **dict.fromkeys(("negative-size", "beyond-maximum", "ratio-2", "micro-batch-zero"), "range"),
}  # fmt: skip
"""Kinds that a JSON Schema must catch."""


def _texts(text: str, chance: random.Random) -> Iterator[Mutation]:
    """Mistakes of grammar."""
    lines = text.splitlines()
    inner = [index for index, line in enumerate(lines) if line.rstrip().endswith(",") and '":' in line]
    at = chance.choice(inner) if inner else 0

    def replaced(kind: str, index: int, line: str) -> Mutation:
        return Mutation(kind, "\n".join([*lines[:index], line, *lines[index + 1 :]]), frozenset({index + 1}))

    yield replaced("comment", at, f"{lines[at]} // ours")
    yield replaced("missing-comma", at, lines[at].rstrip().removesuffix(","))
    yield replaced("unquoted-key", at, lines[at].replace('"', "", 2))
    yield replaced("single-quotes", at, lines[at].replace('"', "'"))
    yield replaced("unclosed-quote", at, lines[at].replace('":', ":", 1))
    flags = [index for index, line in enumerate(lines) if ": true" in line or ": false" in line]
    if flags:
        index = chance.choice(flags)
        yield replaced("python-true", index, lines[index].replace("true", "True").replace("false", "False"))
    numbers = [index for index, line in enumerate(lines) if line.rstrip(", ")[-1:].isdigit()]
    if numbers:
        index = chance.choice(numbers)
        head, _, _ = lines[index].partition(":")
        yield replaced("not-a-number", index, f"{head}: NaN,")
    twice = next((index for index in inner if '": {' not in lines[index]), None)
    if twice is not None:
        broken = [*lines[: twice + 1], lines[twice], *lines[twice + 1 :]]
        yield Mutation("duplicate-key", "\n".join(broken), frozenset({twice + 2}))
    yield Mutation("byte-order-mark", "\ufeff" + text, frozenset({1}))
    yield Mutation("missing-brace", text.rstrip().removesuffix("}"), frozenset())
    last = len(lines) - 2
    commas = [*lines[:last], f"{lines[last]},", *lines[last + 1 :]]
    yield Mutation("trailing-comma", "\n".join(commas), frozenset({last + 1}))
