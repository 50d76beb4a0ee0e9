"""The ``parallelism_config`` block of an accelerate YAML: what Accelerate 1.15 refuses or ignores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.fsdp2_config import PARALLEL, fsdp_version
from zerokit.domain.fsdp2_settings import PARALLELISM_PREFIX
from zerokit.linter.accelerate.keys import IGNORED_KEY, LAUNCH, key_list
from zerokit.linter.finding import Finding, Row, broken, meant
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import Document
from zerokit.suggest import nearest
from zerokit.values import frozen_dataclass

_SOURCE = f"Accelerate {ACCELERATE_VERSION}, parallelism_config.py"
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cp_backend": ("torch",),
    "sp_backend": ("deepspeed",),
    "cp_comm_strategy": ("allgather", "alltoall"),
}


_IGNORED_BLOCK = Row(
    "accelerate-ignored-key", "parallelism_config", "parallelism_config is {block!r}: Accelerate ignores it",
    "write a mapping of parallelism_config_… keys", LAUNCH, "warning",
)  # fmt: skip
_NUMBER = Row(
    "accelerate-number", "", "{key} is {value!r}: accelerate launch fails on it",
    "use a whole number of at least 1, without quotes", LAUNCH,
)  # fmt: skip
_PARALLELISM_VALUE = Row(
    "accelerate-parallelism-value", "", "{key} is {value!r}: Accelerate refuses it", "use {choices}", _SOURCE,
)  # fmt: skip


@frozen_dataclass
class _Layout:
    """The sizes, and what runs them; ``runs``: ``distributed_type``, with FSDP's version."""

    runs: str
    processes: int | None
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    sp: int = 1

    @property
    def fields(self) -> Mapping[str, object]:
        """What texts say of it."""
        return {
            name: getattr(self, name)
            for name in (*PARALLEL, "runs", "processes", "product", "fix_of_product")
        }

    @property
    def product(self) -> int:
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.sp

    @property
    def fix_of_product(self) -> str:
        """The size that fills up the processes."""
        sharded = self.runs == "FSDP 2"
        name, size = ("dp_shard", self.dp_shard) if sharded else ("dp_replicate", self.dp_replicate)
        others = self.product // size
        if self.processes is None or self.processes % others:
            return f"use a multiple of {others} processes, or smaller sizes"
        return f"set {PARALLELISM_PREFIX}{name}_size: {self.processes // others}"


_SIZE = f"parallelism_config.{PARALLELISM_PREFIX}{{}}_size"
_OF_LAYOUTS = (
    Row(
        "accelerate-parallelism-exclusive", _SIZE.format("sp"),
        "cp_size {cp} beside sp_size {sp}: Accelerate refuses the two together",
        "keep one of them, and set the other to 1", f"{_SOURCE}:329",
        broken=lambda at: at.cp > 1 and at.sp > 1,
    ),
    Row(
        "accelerate-parallelism-replicas", _SIZE.format("dp_replicate"),
        "tp_size {tp} and cp_size {cp} beside dp_replicate_size {dp_replicate} without dp_shard_size: "
        "Accelerate refuses replicas that are not sharded",
        f"set {PARALLELISM_PREFIX}dp_shard_size: {{dp_replicate}} and dp_replicate_size: 1", f"{_SOURCE}:336",
        broken=lambda at: max(at.tp, at.cp) > 1 and at.dp_replicate > 1 and at.dp_shard == 1,
    ),
    Row(
        "accelerate-parallelism-type", _SIZE.format("cp"),
        "Accelerate refuses these sizes under {runs}: they need FSDP version 2",
        "set distributed_type: FSDP and fsdp_version: 2",
        f"Accelerate {ACCELERATE_VERSION}, state.py:998, parallelism_config.py:391",
        broken=lambda at: (at.runs == "FSDP 1" and at.product > 1)
        or (at.cp > 1 and at.runs not in ("FSDP 2", "DEEPSPEED")),
    ),
    Row(
        "accelerate-parallelism-product", _SIZE.format("dp_shard"),
        "the sizes multiply to {product}, and num_processes is {processes}: Accelerate refuses it",
        "{fix_of_product}", f"{_SOURCE}:372",
        broken=lambda at: at.processes is not None and at.sp == 1 and at.product not in (1, at.processes)
       ,
    ),
    Row(
        # accelerator.py:2361 multiplies train_batch_size by dp_replicate × dp_shard
        "accelerate-parallelism-product", _SIZE.format("sp"),
        "the sizes multiply to {product}, and num_processes is {processes}: train_batch_size is computed "
        "from the sizes, and DeepSpeed refuses it",
        "{fix_of_product}", f"Accelerate {ACCELERATE_VERSION}, accelerator.py:2361",
        broken=lambda at: at.processes is not None and at.sp > 1 and at.runs == "DEEPSPEED"
        and at.product != at.processes,
    ),
    Row(
        "accelerate-parallelism-no-shard", _SIZE.format("tp"),
        "dp_shard_size and cp_size are 1: FSDP has nothing to shard over, and Accelerate refuses it",
        f"set {PARALLELISM_PREFIX}dp_shard_size above 1, or use MULTI_GPU", f"{_SOURCE}:381",
        broken=lambda at: at.runs == "FSDP 2" and at.product > 1 and at.dp_shard == at.cp == 1,
    ),
    Row(
        "accelerate-parallelism-sp-unused", _SIZE.format("sp"),
        "sp_size {sp} works with DeepSpeed alone: every rank gets whole sequences, and the sizes are not "
        "held against num_processes",
        f"use {PARALLELISM_PREFIX}cp_size, or distributed_type: DEEPSPEED",
        f"Accelerate {ACCELERATE_VERSION}, accelerator.py:2158", "warning",
        broken=lambda at: at.sp > 1 and at.cp == 1 and at.runs not in ("DEEPSPEED", "FSDP 1")
        and not (at.runs == "FSDP 2" and at.dp_shard == 1),
    ),
    Row(
        "accelerate-parallelism-tensor-unused", _SIZE.format("tp"),
        "tp_size {tp} under FSDP version 2 divides no model since Transformers 5.1: one that is loaded in "
        "parts fails (Accelerate imports ReplicateParallel, which is gone), any other stays whole, and {tp} "
        "ranks each train it on the same batch",
        f"set {PARALLELISM_PREFIX}tp_size: 1, or leave FSDP out and load the model with "
        "distributed_config=DistributedConfig(tp_size={tp}, fsdp_size={dp_shard}) for Transformers' Trainer "
        "(5.19 and later)",
        f"Accelerate {ACCELERATE_VERSION}, accelerator.py:1598 and 1618", "warning",
        broken=lambda at: at.tp > 1 and at.runs == "FSDP 2",
    ),
)  # fmt: skip


def lint_parallelism(document: Document, processes: int | None) -> Iterator[Finding]:
    """Findings about the block."""
    block = document.value.get("parallelism_config")
    if block in (None, {}):
        return
    if not isinstance(block, dict):
        yield _IGNORED_BLOCK.at(document, block=block)
        return
    yield from _keys(document, block)
    sizes = {name: block.get(f"{PARALLELISM_PREFIX}{name}_size", 1) for name in PARALLEL}
    if all(map(_is_size, sizes.values())):
        at = _Layout(runs=runs_as(document.value), processes=processes, **sizes)
        found = broken(_OF_LAYOUTS, document, at, **at.fields)
        yield from itertools.islice(found, 1)  # Accelerate stops at the first


def runs_as(value: Mapping[str, Any]) -> str:
    """The ``distributed_type``, with FSDP's version: ``FSDP 2``."""
    kind = str(value.get("distributed_type"))
    return f"FSDP {fsdp_version(value.get('fsdp_config'))}" if kind == "FSDP" else kind


def _keys(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    known_keys = key_list()["parallelism_config"]
    for key, value in block.items():
        name = str(key).removeprefix(PARALLELISM_PREFIX)
        path = ("parallelism_config", key)
        if key not in known_keys:
            prefixed = f"{PARALLELISM_PREFIX}{key}"
            guess = prefixed if prefixed in known_keys else nearest(str(key), known_keys)
            fix = meant(guess, block) if guess else "remove it"
            yield IGNORED_KEY.at(document, path, key=key, block=path[0], fix=fix)
        elif name.endswith("_size") and not _is_size(value):
            yield _NUMBER.at(document, path, key=key, value=value)
        elif name in _CHOICES and value not in _CHOICES[name]:
            yield _PARALLELISM_VALUE.at(
                document, path, key=key, value=value, choices=" or ".join(_CHOICES[name])
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
