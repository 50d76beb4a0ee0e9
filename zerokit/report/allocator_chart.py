"""What a rank's allocator reserved, and how much of that no tensor had: cached, or fragmented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerokit.report import charts, run_events
from zerokit.report.schema import OutOfMemory, RankReport, RunReport

if TYPE_CHECKING:
    from markupsafe import Markup

_ALLOCATED, _RESERVED = 3, 4  # positions in a timeline point
_AT_MOST = "reserved and not allocated, at most (cached or fragmented)"
_SAMPLED = "reserved and not allocated (cached or fragmented)"
_FRAGMENTED = "fragmented: reserved and not allocated after the cache was given back"


def allocator(run: RunReport, rank: RankReport) -> Markup | None:
    """Its two peaks, the sample with the most allocated, and what it had when it ran out of memory.

    The peaks may be of different moments, so that their difference is the most that can have been left over
    when most was allocated. PyTorch gives back what it caches before an allocation fails: what is left over
    then is fragmented.
    """
    rows = []
    if rank.peak_allocated_bytes and rank.peak_reserved_bytes:
        rows.append(_bar("peaks", rank.peak_allocated_bytes, rank.peak_reserved_bytes, _AT_MOST))
    sample = _fullest_sample(rank)
    if sample is not None:
        rows.append(_bar("fullest sample", *sample, _SAMPLED))
    oom = _oom_of(run, rank)
    if oom is not None and oom.allocated_bytes and oom.reserved_bytes:
        rows.append(_bar("out of memory", oom.allocated_bytes, oom.reserved_bytes, _FRAGMENTED))
    return charts.bars(f"Reserved by the allocator, rank {rank.rank}", rows) if rows else None


def left_over(allocated_bytes: int | None, reserved_bytes: int | None) -> tuple[int, float] | None:
    """Bytes reserved and not allocated, and their share of what is reserved; None where that is not known."""
    if allocated_bytes is None or not reserved_bytes:
        return None
    left = max(0, reserved_bytes - allocated_bytes)
    return left, left / reserved_bytes


def _bar(label: str, allocated: int, reserved: int, kind: str) -> charts.Bar:
    left, share = left_over(allocated, reserved) or (0, 0.0)
    style = {_AT_MOST: "m1", _SAMPLED: "m4", _FRAGMENTED: "m2"}[kind]
    parts = [("allocated", float(min(allocated, reserved)), "m0"), (kind, float(left), style)]
    return charts.Bar(label=label, parts=parts, note=f"{share:.1%} left over".replace("%", " %"))


def _fullest_sample(rank: RankReport) -> tuple[int, int] | None:
    samples = [
        (point[_ALLOCATED], point[_RESERVED])
        for point in rank.timeline
        if len(point) > _RESERVED and all(map(run_events.is_size, (point[_ALLOCATED], point[_RESERVED])))
    ]
    fullest = max(samples, default=(0, 0))
    return fullest if fullest[1] else None


def _oom_of(run: RunReport, rank: RankReport) -> OutOfMemory | None:
    failure = run.first_failure
    return failure.oom if failure is not None and failure.rank == rank.rank else None
