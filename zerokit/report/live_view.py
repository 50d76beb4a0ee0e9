"""A run that lives, for a terminal of some height: alarms first, then as much of its report as fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from zerokit.report.alarms import Alarm
from zerokit.report.figure_text import seconds, signal_name, size
from zerokit.report.render import gpu_size, measured, new_table, outcome_line, parts, peak_column
from zerokit.report.schema import RankReport, RunReport
from zerokit.report.terminal_lines import hanging
from zerokit.units import counted

_OF_ALARMS = 3  # they take up to a third of the screen


def live_view(
    report: RunReport, alarms: Sequence[Alarm], console: Console, folder: Path | None = None
) -> RenderableType:
    """The whole report below its alarms, or what a screen as high as the console's has room for.

    Args:
        folder: of the run, for the commands that the report names.
    """
    lines = [hanging(line, console.width) for line in alarm_lines(alarms)]
    whole = Group(*lines, *parts(report, traceback=False, width=console.width, folder=folder))
    if _height(whole, console) < console.height:
        return whole
    shown, hidden = _first(alarm_lines(alarms), console, console.height // _OF_ALARMS)
    if hidden:
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


def _first(lines: Sequence[Text], console: Console, room: int) -> tuple[list[RenderableType], int]:
    """As many as fit, and how many do not."""
    shown: list[RenderableType] = []
    for line in lines:
        if _height(Group(*shown, line), console) > room:
            break
        shown.append(line)
    return shown, len(lines) - len(shown)


def _worth(rank: RankReport, alarms: Sequence[Alarm]) -> tuple[bool, bool, int]:
    """Orders ranks: those with an alarm, those that did not end well, then the fullest."""
    is_alarmed = any(alarm.rank == rank.rank for alarm in alarms)
    return not is_alarmed, rank.state in ("running", "finished", "stopped"), -(measured(rank) or 0)


def _rank_table(report: RunReport, ranks: Sequence[RankReport]) -> RenderableType:
    """A line for each of the ranks, no wider than 80 columns, and how many there are besides."""
    table = new_table()
    table.collapse_padding = True
    peak = peak_column(report)
    for name in ("rank", "state", "step", "step time", "predicted", "peak", "card", peak):
        table.add_column(name, justify="left" if name in ("state", peak) else "right", no_wrap=True)
    expected = report.expected_bytes
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        state = rank.state + (f" ({signal_name(rank.signal)})" if rank.signal else "")
        most = gpu_size(rank, rank.peak_allocated_bytes) if report.on_gpu else size(measured(rank))
        used, total = rank.peak_device_used_bytes, rank.device_total_bytes
        table.add_row(
            str(rank.rank), state, str(rank.steps), seconds(rank.median_step_seconds),
            size(expected.get(rank.rank)), most, f"{used / total:.0%}" if used and total else "–",
            rank.peak_phase or "–",
        )  # fmt: skip
    others = len(report.ranks) - len(ranks)
    return Group(table, Text(f"and {counted(others, 'more rank')}")) if others else table
