"""Runs that end well as processes, and trained nothing: what the ranks' own counts say."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.launcher.rank_file import RankLog

_WARN_SHARE = 0.2  # of the steps; fewer are a loss scale that is being found
_FEWEST = 3


def training_problems(logs: Mapping[int, RankLog]) -> list[str]:
    """One sentence for each thing that makes the training itself doubtful."""
    counts = []
    for rank, log in sorted(logs.items()):
        known = log.last("end", "tick") or {}
        counts.append((int(known.get("skipped_steps") or 0), int(known.get("steps") or 0), rank))
    skipped, steps, rank = max(counts, default=(0, 0, 0))
    if skipped < _FEWEST or skipped < _WARN_SHARE * steps:
        return []
    if skipped >= steps:
        what = f"all {steps} optimizer steps were skipped (rank {rank}): the weights never changed"
    else:
        what = f"{skipped} of {steps} optimizer steps were skipped (rank {rank})"
    return [
        f"{what}; DeepSpeed skips a step whose gradients are not finite. Use bf16, a lower learning rate or "
        "initial_scale_power, or look for NaN in the data"
    ]
