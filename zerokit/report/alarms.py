"""What somebody should look at while a run lives: ranks that fall behind, memory near its end, leaks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from zerokit.report.schema import RankReport, RunReport
from zerokit.units import format_gib, times

_BEHIND_STEPS = 2  # a rank may be one step behind its peers whenever it is looked at
_LATE_RECORDS = 2  # of its peers' and its own: a record is written late where all cores are busy
_LATEST_SECONDS = 10.0  # a rank whose records stay out for longer is not only read too early
_SLOW = 1.2  # of the median step time
_FULL = 0.97  # of the card, as the device counts it
_HOST_FULL = 0.95  # of the memory that a host, or its control group, has


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something to look at: ``kind`` and ``rank`` (None: the whole run) stay, figures of ``text`` change."""

    kind: str
    rank: int | None
    text: str

    @property
    def key(self) -> tuple[str, int | None]:
        """The same of an alarm that was raised before."""
        return self.kind, self.rank


def alarms(
    run: RunReport, host_limit_bytes: int | None = None, recorded_every_seconds: float = 0.0
) -> list[Alarm]:
    """One for each thing that is wrong or about to be; empty where nothing is.

    Args:
        host_limit_bytes: memory of this host, where all the ranks are on it.
        recorded_every_seconds: how often a rank writes down how far it is.
    """
    result = [*_behind(run.ranks, recorded_every_seconds), *_slow(run.ranks)]
    for rank in run.ranks:
        result += _of_rank(rank)
    resident = sum(rank.peak_host_rss_bytes for rank in run.ranks)
    if (
        host_limit_bytes
        and len({rank.host for rank in run.ranks}) == 1
        and resident > _HOST_FULL * host_limit_bytes
    ):
        text = (
            f"host memory near its end: the ranks' peaks sum to {format_gib(resident, 1)} of "
            f"{format_gib(host_limit_bytes, 1)}"
        )
        result.append(Alarm("host memory", None, text))
    return result + [Alarm(note.id, None, note.text) for note in run.notes if note.id != "waits-unmeasured"]


def _behind(ranks: list[RankReport], recorded_every_seconds: float) -> list[Alarm]:
    """Ranks that are more steps behind the first than their records, of different times, explain."""
    living = _living(ranks)
    first = max(living, key=lambda rank: rank.steps, default=None)
    if first is None:
        return []
    found = []
    for rank in living:
        steps = first.steps - rank.steps
        late = _LATE_RECORDS * recorded_every_seconds + _recorded_earlier(rank, first)
        explained = late / first.median_step_seconds if first.median_step_seconds else 0.0
        if rank.state == "running" and steps >= _BEHIND_STEPS and steps > 1 + explained:
            text = f"rank {rank.rank} on {rank.host} is {steps} optimizer steps behind"
            found.append(Alarm("steps behind", rank.rank, text))
    return found


def _recorded_earlier(rank: RankReport, first: RankReport) -> float:
    """Seconds from what is known of a rank to what is known of the first."""
    if rank.last_heard_at is None or first.last_heard_at is None:
        return 0.0
    return min(max(0.0, first.last_heard_at - rank.last_heard_at), _LATEST_SECONDS)


def _slow(ranks: list[RankReport]) -> list[Alarm]:
    """Ranks whose steps take longer than those of the others, with the factor."""
    times = {rank.rank: rank.median_step_seconds for rank in _living(ranks) if rank.median_step_seconds}
    if len(times) <= 2:
        return []
    median = statistics.median(times.values())
    return [
        Alarm("slow", rank, f"rank {rank} takes {seconds / median:.1f} times the median step time")
        for rank, seconds in times.items()
        if seconds > _SLOW * median
    ]


def _living(ranks: list[RankReport]) -> list[RankReport]:
    return [rank for rank in ranks if rank.state in ("running", "finished", "stopped")]


def _of_rank(rank: RankReport) -> list[Alarm]:
    found = []
    total, used = rank.device_total_bytes, rank.peak_device_used_bytes
    if total and used and used > _FULL * total:
        sizes = f"{format_gib(used, 1)} of the card's {format_gib(total, 1)}"
        found.append(("full", f"{sizes} are in use: the next allocation may fail"))
    if rank.alloc_retries:
        found.append(("retries", f"the allocator ran full and retried {times(rank.alloc_retries)}"))
    for leak in rank.leaks:
        kind = "GPU" if leak.memory == "gpu" else "host"
        text = (
            f"{kind} memory grows by {leak.bytes_per_step / (1 << 20):.1f} MiB a step "
            f"(steps {leak.first_step} to {leak.last_step})"
        )
        found.append((f"{kind} memory grows", text))
    return [Alarm(kind, rank.rank, f"rank {rank.rank}: {text}") for kind, text in found]
