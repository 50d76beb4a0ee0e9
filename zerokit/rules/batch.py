"""Batch arithmetic: train_batch_size = micro-batch × accumulation × data-parallel ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import AUTO
from zerokit.rules.types import EVERY_READER, Edit, Rule, Setup

_TOO_LARGE = 2**63
_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _numbers(setup: Setup, *, open_auto: bool = False) -> list[int | None] | None:
    """The three sizes, ``None`` where absent; nothing at all when one is not a whole number. ``open_auto``:
    ``"auto"``, which a Trainer and Accelerate fill, is as good as absent."""
    numbers: list[int | None] = []
    for key in _KEYS:
        value = setup.get(key)
        if value is None or (open_auto and value == AUTO):
            numbers.append(None)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not _is_whole(value):
            return None
        else:
            numbers.append(int(value))
    return numbers


def _is_whole(value: float) -> bool:
    return abs(value) < _TOO_LARGE and value == int(value)


def ranks_of(raw: Mapping[str, Any]) -> int | None:
    """The data-parallel ranks that the batch sizes of a file multiply to; None: one of them is left open, or
    no number of ranks does."""
    sizes = [raw.get(key) for key in _KEYS]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        return None
    train, micro, steps = (int(size) for size in sizes if size is not None)
    ranks, rest = divmod(train, micro * steps)
    return None if rest else ranks


def _none_given(setup: Setup) -> bool:
    has_size = any(setup.get(key) is not None for key in _KEYS[:2])
    return not has_size and not _left_to_a_framework(setup)


def _left_to_a_framework(setup: Setup) -> bool:
    """A file of nothing but ZeRO, as it were, that may be meant for PyTorch Lightning. Its DeepSpeedStrategy
    fills train_micro_batch_size_per_gpu, and refuses accumulation in the file."""
    has_zero = isinstance(setup.get("zero_optimization"), Mapping)
    return (
        setup.readers == EVERY_READER
        and has_zero
        and not any(setup.get(key) is not None for key in (*_KEYS, "optimizer", "scheduler"))
    )


def _not_positive(setup: Setup) -> bool | Mapping[str, Any]:
    for key in _KEYS:
        value = setup.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < 1:
            return {"name": key, "value": value}
    return False


def _mismatch(setup: Setup) -> bool | Mapping[str, Any]:
    numbers = _numbers(setup)
    if numbers is None or setup.world_size is None or setup.tensor_parallel > 1:
        return False
    train, micro, steps = numbers
    ranks, rest = divmod(setup.world_size, setup.pipeline_parallel * setup.sequence_parallel)
    if train is None or rest or train < 1 or any(n is not None and n < 1 for n in numbers):
        return False
    micro = micro if micro is not None else max(1, train // ranks // (steps or 1))
    steps = steps if steps is not None else train // micro // ranks
    if train == micro * steps * ranks:
        return False
    right = micro * max(1, steps) * ranks
    return {"train": train, "micro": micro, "steps": steps, "ranks": ranks, "right": right}


def _contradiction(setup: Setup) -> bool | Mapping[str, Any]:
    numbers = _numbers(setup, open_auto=True)
    filled = any(setup.get(key) == AUTO for key in _KEYS)
    if numbers is None or (setup.world_size is not None and not filled) or setup.tensor_parallel > 1:
        return False
    train, micro, steps = numbers
    ranks, rest = divmod(setup.world_size or 1, setup.pipeline_parallel * setup.sequence_parallel)
    if train is None or rest or any(number is not None and number < 1 for number in numbers):
        return False
    known_ranks = ranks if setup.world_size is not None else None
    parts = [(micro, "micro-batch"), (steps, "accumulation"), (known_ranks, "data-parallel ranks")]
    if train % ((micro or 1) * (steps or 1) * (known_ranks or 1)) == 0:
        return False
    return {
        "train": train,
        "parts": " × ".join(f"{size} ({name})" for size, name in parts if size),
        "nothing": "no number of ranks" if known_ranks is None else 'nothing that fills "auto"',
    }


BATCH_RULES: tuple[Rule, ...] = (
    Rule(
        id="batch-size-missing",
        missing="train_",
        source="deepspeed/runtime/config.py:650",
        key="gradient_accumulation_steps",
        message="neither train_batch_size nor train_micro_batch_size_per_gpu is given: DeepSpeed refuses the file",
        fix='add "train_micro_batch_size_per_gpu"',
        broken=_none_given,
    ),
    Rule(
        id="batch-size-left-out",
        missing="train_",
        severity="warning",
        source="deepspeed/runtime/config.py:650",
        key="",
        message="no batch size is given: deepspeed.initialize, the Trainer and Accelerate refuse the file; PyTorch "
        "Lightning, or a script that adds it, fills train_micro_batch_size_per_gpu",
        fix='add "train_micro_batch_size_per_gpu", unless it is filled by one of them',
        broken=lambda s: _left_to_a_framework(s) and s.raw is not None,
    ),
    Rule(
        id="batch-size-not-positive",
        source="deepspeed/runtime/config.py:596",
        key="{name}",
        message="{name} is {value}: DeepSpeed refuses the file",
        fix="use a whole number of at least 1",
        broken=_not_positive,
    ),
    Rule(
        id="batch-arithmetic",
        source="deepspeed/runtime/config.py:602",
        key="train_batch_size",
        message="train_batch_size {train} is not {micro} (micro-batch) × {steps} (accumulation) × {ranks} "
        "(data-parallel ranks): DeepSpeed refuses the file",
        fix="use {right}, or leave train_batch_size out",
        broken=_mismatch,
    ),
    Rule(
        id="batch-contradiction",
        source="deepspeed/runtime/config.py:602",
        key="train_batch_size",
        message="train_batch_size {train} is not a multiple of {parts}: {nothing} fits",
        fix="leave train_batch_size out",
        broken=_contradiction,
    ),
    Rule(
        id="train-batch-size-with-autotp",
        source="deepspeed/runtime/config.py:478",
        key="train_batch_size",
        message="with tensor parallel {degree}, DeepSpeed checks train_batch_size against all {ranks}ranks, "
        "not the data-parallel ones: it refuses the file, or steps at another batch than meant",
        fix="leave train_batch_size out",
        broken=lambda s: (
            s.tensor_parallel > 1
            and s.get("train_batch_size") not in (None, "auto")
            and {"degree": s.tensor_parallel, "ranks": f"{s.world_size} " if s.world_size else ""}
        ),
        edits=(Edit(kind="remove", key="train_batch_size", safe=False),),
    ),
)
