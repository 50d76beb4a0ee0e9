"""The ``parallelism_config`` block of an accelerate YAML: what Accelerate 1.15 refuses or ignores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerokit.linter.accelerate.keys import LAUNCH, PARALLELISM_PREFIX, fsdp_version, key_list, short
from zerokit.linter.finding import Finding, Row, meant
from zerokit.rules.types import ACCELERATE_VERSION, Severity
from zerokit.strictload import Document
from zerokit.suggest import nearest
from zerokit.values import frozen_dataclass

_SOURCE = f"Accelerate {ACCELERATE_VERSION}, parallelism_config.py"
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cp_backend": ("torch",),
    "sp_backend": ("deepspeed",),
    "cp_comm_strategy": ("allgather", "alltoall"),
}


_IGNORED_BLOCK = Row(
    "accelerate-ignored-key", "parallelism_config", "parallelism_config is {block}: Accelerate ignores it",
    "write a mapping of parallelism_config_… keys", LAUNCH, "warning",
)  # fmt: skip
_IGNORED_KEY = Row(
    "accelerate-ignored-key", "", "Accelerate ignores {key} in parallelism_config", "{fix}", LAUNCH,
    "warning",
)  # fmt: skip
_NUMBER = Row(
    "accelerate-number", "", "{key} is {value}: accelerate launch fails on it",
    "use a whole number of at least 1, without quotes", LAUNCH,
)  # fmt: skip
_PARALLELISM_VALUE = Row(
    "accelerate-parallelism-value", "", "{key} is {value}: Accelerate refuses it", "use {choices}", _SOURCE,
)  # fmt: skip


@frozen_dataclass
class _Layout:
    """The sizes, and what runs them.

    Attributes:
        runs: ``distributed_type``, with FSDP's version.
    """

    runs: str
    processes: int | None
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    sp: int = 1

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


@frozen_dataclass
class _Rule:
    """A layout that cannot be, or is not what it says; the texts take the layout as ``at``."""

    id: str
    size: str
    breaks: Callable[[_Layout], bool]
    message: str
    fix: str
    line: str
    severity: Severity = "error"


_RULES = (
    _Rule(
        id="accelerate-parallelism-exclusive", size="sp", line="parallelism_config.py:329",
        breaks=lambda at: at.cp > 1 and at.sp > 1,
        message="cp_size {at.cp} beside sp_size {at.sp}: Accelerate refuses the two together",
        fix="keep one of them, and set the other to 1",
    ),
    _Rule(
        id="accelerate-parallelism-replicas", size="dp_replicate", line="parallelism_config.py:336",
        breaks=lambda at: max(at.tp, at.cp) > 1 and at.dp_replicate > 1 and at.dp_shard == 1,
        message="tp_size {at.tp} and cp_size {at.cp} beside dp_replicate_size {at.dp_replicate} without "
        "dp_shard_size: Accelerate refuses replicas that are not sharded",
        fix=f"set {PARALLELISM_PREFIX}dp_shard_size: {{at.dp_replicate}} and dp_replicate_size: 1",
    ),
    _Rule(
        id="accelerate-parallelism-type", size="cp", line="state.py:998, parallelism_config.py:391",
        breaks=lambda at: (at.runs == "FSDP 1" and at.product > 1)
        or (at.cp > 1 and at.runs not in ("FSDP 2", "DEEPSPEED")),
        message="Accelerate refuses these sizes under {at.runs}: they need FSDP version 2",
        fix="set distributed_type: FSDP and fsdp_version: 2",
    ),
    _Rule(
        id="accelerate-parallelism-product", size="dp_shard", line="parallelism_config.py:372",
        breaks=lambda at: at.processes is not None and at.sp == 1
        and at.product not in (1, at.processes),
        message="the sizes multiply to {at.product}, and num_processes is {at.processes}: "
        "Accelerate refuses it",
        fix="{at.fix_of_product}",
    ),
    _Rule(
        # accelerator.py:2361 multiplies train_batch_size by dp_replicate × dp_shard
        id="accelerate-parallelism-product", size="sp", line="accelerator.py:2361",
        breaks=lambda at: at.processes is not None and at.sp > 1 and at.runs == "DEEPSPEED"
        and at.product != at.processes,
        message="the sizes multiply to {at.product}, and num_processes is {at.processes}: "
        "train_batch_size is computed from the sizes, and DeepSpeed refuses it",
        fix="{at.fix_of_product}",
    ),
    _Rule(
        id="accelerate-parallelism-no-shard", size="tp", line="parallelism_config.py:381",
        breaks=lambda at: at.runs == "FSDP 2" and at.product > 1 and at.dp_shard == at.cp == 1,
        message="dp_shard_size and cp_size are 1: FSDP has nothing to shard over, and Accelerate refuses it",
        fix=f"set {PARALLELISM_PREFIX}dp_shard_size above 1, or use MULTI_GPU",
    ),
    _Rule(
        id="accelerate-parallelism-sp-unused", size="sp", line="accelerator.py:2158", severity="warning",
        breaks=lambda at: at.sp > 1 and at.cp == 1 and at.runs != "DEEPSPEED"
        and not (at.runs == "FSDP 2" and at.dp_shard == 1) and at.runs != "FSDP 1",
        message="sp_size {at.sp} works with DeepSpeed alone: every rank gets whole sequences, and the sizes "
        "are not held against num_processes",
        fix=f"use {PARALLELISM_PREFIX}cp_size, or distributed_type: DEEPSPEED",
    ),
)  # fmt: skip


def lint_parallelism(document: Document, processes: int | None) -> Iterator[Finding]:
    """Findings about the block."""
    block = document.value.get("parallelism_config")
    if block in (None, {}):
        return
    if not isinstance(block, dict):
        yield _IGNORED_BLOCK.at(document, block=short(block))
        return
    yield from _keys(document, block)
    sizes = {name: block.get(f"{PARALLELISM_PREFIX}{name}_size", 1) for name in _SIZES}
    if all(map(_is_size, sizes.values())):
        at = _Layout(runs=_runs(document.value), processes=processes, **sizes)
        broken = [rule for rule in _RULES if rule.breaks(at)]
        for rule in broken[:1]:  # Accelerate stops at the first
            row = Row(
                rule.id, f"parallelism_config.{PARALLELISM_PREFIX}{rule.size}_size",
                rule.message.format(at=at), rule.fix.format(at=at),
                f"Accelerate {ACCELERATE_VERSION}, {rule.line}", rule.severity,
            )  # fmt: skip
            yield row.at(document)


def _runs(value: Mapping[str, Any]) -> str:
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
            yield _IGNORED_KEY.at(
                document, path, key=short(key), fix=meant(guess, block) if guess else "remove it"
            )
        elif name.endswith("_size") and not _is_size(value):
            yield _NUMBER.at(document, path, key=key, value=short(value))
        elif name in _CHOICES and value not in _CHOICES[name]:
            yield _PARALLELISM_VALUE.at(
                document, path, key=key, value=short(value), choices=" or ".join(_CHOICES[name])
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
