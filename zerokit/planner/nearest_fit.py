"""The nearest changes with which a configuration that does not fit would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit import planner
from zerokit.errors import InputError, NothingFits

if TYPE_CHECKING:
    from zerokit.planner.documents import Estimate

_CHANGES: tuple[Mapping[str, str], ...] = (
    {"checkpointing": "full"},
    {"micro_batch": "1"},
    {"loss": "chunked"},
    {"offload_optimizer": "cpu"},
    {"zero": "3"},
)
"""The least first: what changes no file before what does."""
_MOST_TOGETHER, _MOST_SHOWN = 3, 2


def nearest_fits(
    options: Mapping[str, Any], deepspeed: str | Path | None, result: Estimate
) -> list[tuple[Mapping[str, str], Estimate]]:
    """As few changes as make it fit, two ways at most; empty where none of those that are tried does."""
    for count in range(1, _MOST_TOGETHER + 1):
        found = list(_fitting(options, deepspeed, result, count))
        if found:
            return found[:_MOST_SHOWN]
    return []


def _fitting(
    options: Mapping[str, Any], deepspeed: str | Path | None, result: Estimate, count: int
) -> Iterator[tuple[Mapping[str, str], Estimate]]:
    strategy = result.planned.strategy
    now = {
        "checkpointing": strategy.checkpointing, "micro_batch": str(strategy.settings.micro_batch),
        "loss": result.planned.job.loss, "zero": str(strategy.settings.zero.stage),
        "offload_optimizer": strategy.settings.zero.offload_optimizer.device,
    }  # fmt: skip
    open_changes = [change for change in _CHANGES if not change.items() <= now.items()]
    for changes in combinations(open_changes, count):
        changed = {name: value for change in changes for name, value in change.items()}
        with contextlib.suppress(InputError, NothingFits):  # the file decides it, or it cannot be here
            then = planner.estimate({**options, **changed}, deepspeed=deepspeed)
            if then.fits:
                yield changed, then
