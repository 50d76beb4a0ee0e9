"""``zerokit watch``: show a run while it trains, with alarms."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerokit.cli.base import Command
from zerokit.cli.say import say, write
from zerokit.errors import InputError
from zerokit.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from zerokit.launcher.verdict.saved_run import WatchedRun
    from zerokit.report.live import Alarm
    from zerokit.report.schema import RunReport

_SECONDS = 2.0


@click.command("watch", cls=Command)
@click.argument("run", metavar="RUN")
@click.option("--metrics", metavar="FILE", help="Keep the figures in FILE too, as OpenMetrics text.")
@click.option("--once", is_flag=True, help="Show it as it is now, and end.")
@click.option("--every", default=_SECONDS, show_default=True, metavar="SECONDS", help="How often to look.")
def command(run: str, metrics: str | None, once: bool, every: float) -> int:
    """Show RUN, a run folder, until it ends: memory and steps by rank, and alarms.

    A run that is just starting is waited for.

    Alarms: a rank that is steps behind or slower than the others, or that they wait for; GPU or host memory
    near its end; allocator retries; memory that grows; skipped steps; losses that are not finite, that stay
    the same or that are alike on ranks with data of their own; gradients of zero. In a pipe, a line is
    printed for each new alarm and for the end.
    """
    from rich.console import Console

    from zerokit.launcher.verdict.saved_run import WatchedRun, is_starting

    if not 0.2 <= every <= 3600:
        raise InputError(f"⟨every⟩ {every:g}: use 0.2 to 3600 seconds")
    watched = WatchedRun(Path(run), Path(metrics) if metrics is not None else None)
    console = Console()
    if is_starting(watched.path):
        say("the run is starting; no rank has recorded anything yet")
        if once:
            return 0
        while is_starting(watched.path):
            time.sleep(every)
    if once:
        report = _once(watched)
    elif console.is_terminal:
        from rich.live import Live

        from zerokit.report.live import live_view

        with Live(console=console, auto_refresh=False) as live:
            while True:
                report, alarms = watched.look()
                if watched.is_over(report):
                    live.transient = True  # the whole of it is left on the terminal
                    break
                live.update(live_view(report, alarms, console, watched.folder), refresh=True)
                time.sleep(every)
        _print(watched, report, alarms, console)
    else:
        report = _lines(watched, every)
    return report.exit_code if report.outcome != "running" else 0


def _lines(watched: WatchedRun, every: float) -> RunReport:
    said_alarms: set[tuple[str, int | None]] = set()
    announced = False
    while True:
        report, alarms = watched.look()
        if not announced and not watched.is_over(report):
            say("the run is in progress; a line follows for each new alarm and for its end")
        announced = True
        for alarm in alarms:
            if alarm.key not in said_alarms:
                write(f"ALARM {alarm.text}")
                said_alarms.add(alarm.key)
        if watched.is_over(report):
            steps, count = max((rank.steps for rank in report.ranks), default=0), len(report.ranks)
            write(f"{report.outcome.words}: {counted(count, 'rank')}, step {steps}")
            say("the run has ended")
            return report
        time.sleep(every)


def _once(watched: WatchedRun) -> RunReport:
    from zerokit.report.render import wide_console

    report, alarms = watched.look()
    _print(watched, report, alarms, wide_console())
    if report.outcome == "running":
        say("the run is still in progress")
    elif not watched.is_over(report):
        say("its ranks have ended; no report.json is written yet")
    return report


def _print(watched: WatchedRun, report: RunReport, alarms: list[Alarm], console: Console) -> None:
    from zerokit.report.live import alarm_lines
    from zerokit.report.render import print_report

    console.print(*alarm_lines(alarms), sep="\n", end="\n" if alarms else "")
    print_report(report, console, traceback=False, folder=watched.folder)
