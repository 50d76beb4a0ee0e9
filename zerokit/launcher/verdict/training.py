"""Runs that go on, and end well as processes, but train nothing or wait: what the ranks' own counts say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.rank_view import RankView, recorded
from zerokit.launcher.verdict.unlike_collectives import unlike_sizes
from zerokit.report.stragglers import find_straggler, why_unknown

_WARN_SHARE = 0.2  # of the steps; fewer are a loss scale that is being found
_FEWEST = 3
_SAME_LOSSES = 10
_Ticks = Mapping[int, Mapping[str, Any]]


def training_problems(logs: Mapping[int, RankLog]) -> list[str]:
    """One sentence for each thing that makes the training doubtful, and for a rank that is waited for."""
    ticks = newest(logs)
    straggler = find_straggler(ticks)
    unlike, unknown = unlike_collective(logs), why_unknown(ticks)
    return [
        *([unlike] if unlike else []),
        *_no_step(logs),
        *doubts(ticks),
        *([str(straggler)] if straggler is not None else []),
        *([unknown] if unknown else []),
    ]


def _no_step(logs: Mapping[int, RankLog]) -> list[str]:
    """A DeepSpeed engine came up, and every rank finished without one of its steps."""
    ends = [log.last("end") for log in logs.values()]
    if not ends or not all(end is not None and end.get("state") == "finished" for end in ends):
        return []
    if any(end.get("steps") for end in ends if end) or not all(log.last("engine") for log in logs.values()):
        return []
    micro_steps = max(int(end.get("micro_steps") or 0) for end in ends if end)
    ran = f"{micro_steps} micro-batch{'es' if micro_steps != 1 else ''} of a rank ran"
    return [
        f"no training step was seen: {ran}, and no optimizer step; give it more data or steps, or a smaller "
        "gradient accumulation"
    ]


def unlike_collective(logs: Mapping[int, RankLog]) -> str | None:
    """A collective that ended although the ranks' tensors were not of one size."""
    records = {rank: log.last("calls") for rank, log in sorted(logs.items())}
    return unlike_sizes(
        [recorded(RankView(rank=rank), record) for rank, record in records.items() if record is not None]
    )


def newest(logs: Mapping[int, RankLog]) -> dict[int, Mapping[str, Any]]:
    """The last account of each rank."""
    return {rank: log.last("end", "tick") or {} for rank, log in sorted(logs.items())}


def doubts(ticks: _Ticks) -> list[str]:
    """Steps that were skipped, unusable losses, gradients that are zero, ranks with the same data."""
    result = [*_skipped(ticks), *_same_batches(ticks)]
    count, rank = _most(ticks, "not_finite")
    if count >= _FEWEST:
        result.append(
            f"the loss is not finite (rank {rank}, the last {count} backward passes); look for NaN in the "
            "data, a division by zero (labels that are all ignored), or a learning rate that is too high"
        )
    count, rank = _most(ticks, "zero_gradients")
    zero = count >= _FEWEST
    if zero:
        result.append(
            f"the gradients are zero (rank {rank}, the last {count} steps): nothing is learned; look for "
            "labels that are all ignored, a loss cut off from the model (detach, no_grad), or frozen weights"
        )
    count, rank = _most(ticks, "same")
    if count >= _SAME_LOSSES and not zero:
        result.append(
            f"the loss is the same to the last digit (rank {rank}, {count} backward passes): nothing seems "
            "to be learned; look at the learning rate, the optimizer's parameters and skipped steps"
        )
    return result


def _most(ticks: _Ticks, name: str) -> tuple[int, int]:
    counts = [
        (int(learning.get(name) or 0), -rank)
        for rank, tick in ticks.items()
        if isinstance(learning := tick.get("learning"), dict) and isinstance(learning.get(name), int)
    ]
    count, rank = max(counts, default=(0, 0))
    return count, -rank


def _same_batches(ticks: _Ticks) -> list[str]:
    """Data-parallel ranks whose first losses are the same; tensor parallel peers rightly have the same."""
    accounts = [tick.get("learning") for tick in ticks.values()]
    batches = {
        (account.get("first_losses"), account.get("data_parallel"))
        if isinstance(account, dict)
        else (None, None)
        for account in accounts
    }
    if len(ticks) < 2 or len(batches) != 1:
        return []
    losses, data_parallel = batches.pop()
    if not isinstance(losses, str) or data_parallel != len(ticks):
        return []
    return [
        f"all {len(ticks)} ranks computed the same losses from the first on: they seem to read the same "
        "batches, which trains no more than one rank would; give each rank its own part of the data "
        "(DistributedSampler, another seed, or training_data of deepspeed.initialize)"
    ]


def _skipped(ticks: _Ticks) -> list[str]:
    counts = [
        (int(tick.get("skipped_steps") or 0), int(tick.get("steps") or 0), rank)
        for rank, tick in sorted(ticks.items())
    ]
    skipped, steps, rank = max(counts, default=(0, 0, 0))
    if skipped < _FEWEST or skipped < _WARN_SHARE * steps:
        return []
    if skipped >= steps:
        fault = f"all {steps} optimizer steps were skipped (rank {rank}): the weights never changed"
    else:
        fault = f"{skipped} of {steps} optimizer steps were skipped (rank {rank})"
    return [
        f"{fault}; DeepSpeed skips a step whose gradients are not finite. Use bf16, a lower learning rate or "
        "initial_scale_power, or look for NaN in the data"
    ]
