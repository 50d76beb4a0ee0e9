"""A run that lives: what somebody should look at (ranks that fall behind, memory near its end, leaks), its
view in a terminal of some height, and its figures as OpenMetrics for a collector that reads files.

The format: https://prometheus.io/docs/specs/om/open_metrics_spec/"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from zerokit.report.render import (
    hanging,
    measured,
    outcome_line,
    parts,
    peak_column,
    rank_cells,
    rank_table,
)
from zerokit.report.schema import RankReport, RunReport
from zerokit.report.words import size
from zerokit.units import counted, format_gib, times

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
    """One for each thing that is wrong or about to be; empty where nothing is. ``host_limit_bytes``: memory
    of this host, where all ranks are on it; ``recorded_every_seconds``: how often a rank writes how far it
    is."""
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
        late = _LATE_RECORDS * recorded_every_seconds
        if rank.last_heard_at is not None and first.last_heard_at is not None:
            late += min(max(0.0, first.last_heard_at - rank.last_heard_at), _LATEST_SECONDS)
        explained = late / first.median_step_seconds if first.median_step_seconds else 0.0
        if rank.state == "running" and steps >= _BEHIND_STEPS and steps > 1 + explained:
            text = f"rank {rank.rank} on {rank.host} is {steps} optimizer steps behind"
            found.append(Alarm("steps behind", rank.rank, text))
    return found


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


_OF_ALARMS = 3  # they take up to a third of the screen


def live_view(
    report: RunReport, alarms: Sequence[Alarm], console: Console, folder: Path | None = None
) -> RenderableType:
    """The whole report below its alarms, or what a screen as high as the console's has room for. ``folder``:
    of the run, for the commands that the report names."""
    lines = [hanging(line, console.width) for line in alarm_lines(alarms)]
    whole = Group(*lines, *parts(report, traceback=False, width=console.width, folder=folder))
    if _height(whole, console) < console.height:
        return whole
    shown: list[RenderableType] = []
    for line in alarm_lines(alarms):
        if _height(Group(*shown, line), console) > console.height // _OF_ALARMS:
            break
        shown.append(line)
    if hidden := len(alarms) - len(shown):
        shown.append(Text(f"and {counted(hidden, 'more alarm')}", style="red"))
    ranks = sorted(report.ranks, key=lambda rank: _worth(rank, alarms))
    view = Group(*shown, outcome_line(report))  # of a run that no rank has come up in yet
    for rows in range(min(len(ranks), console.height), 0, -1):
        view = Group(*shown, _rank_table(report, ranks[:rows]), outcome_line(report))
        if _height(view, console) < console.height:
            break
    return view


def alarm_lines(alarms: Sequence[Alarm]) -> list[Text]:
    """One for each, the mark that a pipe can be searched for in front."""
    return [Text(f"ALARM {alarm.text}", style="bold red") for alarm in alarms]


def _height(shown: RenderableType, console: Console) -> int:
    return len(console.render_lines(shown, console.options.update(height=None), pad=False))


def _worth(rank: RankReport, alarms: Sequence[Alarm]) -> tuple[bool, bool, int]:
    """Orders ranks: those with an alarm, those that did not end well, then the fullest."""
    is_alarmed = any(alarm.rank == rank.rank for alarm in alarms)
    return not is_alarmed, rank.state in ("running", "finished", "stopped"), -(measured(rank) or 0)


def _rank_table(report: RunReport, ranks: Sequence[RankReport]) -> RenderableType:
    """A line for each of the ranks, no wider than 80 columns, and how many there are besides."""
    rows = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        cells, used, total = rank_cells(report, rank), rank.peak_device_used_bytes, rank.device_total_bytes
        cells["state"] = cells["state"].plain
        cells["peak"] = cells["allocated"] if report.on_gpu else size(measured(rank))
        cells["card"] = f"{used / total:.0%}" if used and total else "–"
        rows.append(cells)
    names = ("rank", "state", "steps", "step time", "predicted", "peak", "card", peak_column(report))
    table = rank_table(names, rows, {"steps": "step"})
    table.collapse_padding = True
    others = len(report.ranks) - len(ranks)
    return Group(table, Text(f"and {counted(others, 'more rank')}")) if others else table


_BYTES = (
    ("peak_allocated", "peak_allocated_bytes", "Highest GPU memory that PyTorch had allocated"),
    ("peak_reserved", "peak_reserved_bytes", "Highest GPU memory that PyTorch's allocator held"),
    ("peak_device_used", "peak_device_used_bytes", "Highest memory in use on the device"),
    ("device_total", "device_total_bytes", "The device's memory"),
    ("peak_host_rss", "peak_host_rss_bytes", "Highest resident host memory"),
)


def openmetrics(run: RunReport, alarms: int) -> str:
    """The whole exposition, its end mark included. What is not measured has no sample. ``alarms``: how many
    there are."""
    lines: list[str] = []
    for name, field, text in _BYTES:
        samples = [(rank, value) for rank in run.ranks if (value := getattr(rank, field)) is not None]
        lines += _family(f"zerokit_{name}_bytes", "gauge", "bytes", text, samples)
    lines += [
        "# TYPE zerokit_phase_peak_bytes gauge",
        "# UNIT zerokit_phase_peak_bytes bytes",
        "# HELP zerokit_phase_peak_bytes Highest memory in a phase, of the GPU where there is one",
        *(f"zerokit_phase_peak_bytes{{{_labels(rank)},phase=\"{_escaped(phase)}\"}} {value}"
          for rank in run.ranks for phase, value in rank.phases.items()),
    ]  # fmt: skip
    steps = [(rank, rank.steps) for rank in run.ranks]
    lines += _family("zerokit_optimizer_steps", "counter", "", "Optimizer steps done", steps, suffix="_total")
    times = [(rank, rank.median_step_seconds) for rank in run.ranks if rank.median_step_seconds]
    lines += _family("zerokit_step_seconds", "gauge", "seconds", "Median time of an optimizer step", times)
    lines += ["# TYPE zerokit_alarms gauge", "# HELP zerokit_alarms Things that somebody should look at",
              f"zerokit_alarms {alarms}", "# EOF"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _family(
    name: str,
    kind: str,
    unit: str,
    text: str,
    samples: Sequence[tuple[RankReport, float]],
    suffix: str = "",
) -> Iterator[str]:
    if not samples:
        return
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}"
    for rank, value in samples:
        yield f"{name}{suffix}{{{_labels(rank)}}} {value}"


def _labels(rank: RankReport) -> str:
    return f'rank="{rank.rank}",host="{_escaped(rank.host)}",state="{rank.state}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
