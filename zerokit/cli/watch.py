"""``zerokit watch``: show a run while it trains, with alarms."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerokit.cli.base import Command
from zerokit.cli.say import say
from zerokit.errors import InputError
from zerokit.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from zerokit.launcher.verdict.saved_run import WatchedRun
    from zerokit.report.schema import RunReport

_SECONDS = 2.0


@click.command("watch", cls=Command)
@click.argument("run", metavar="RUN")
@click.option("--metrics", metavar="FILE", help="Keep the figures in FILE too, as OpenMetrics text.")
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option("--every", default=_SECONDS, show_default=True, metavar="SECONDS", help="How often to look.")
def command(run: str, metrics: str | None, once: bool, every: float) -> int:
    """Show RUN, a run folder, until it ends: memory and steps by rank, and alarms.

    Alarms: a rank that is steps behind or slower than the others, or that they wait for; GPU or host memory
    near its end; allocator retries; memory that grows; skipped steps; losses that are not finite, that stay
    the same or that are alike on ranks with data of their own; gradients of zero. In a pipe, a line is
    printed for each new alarm and for the end.
    """
    from rich.console import Console

    from zerokit.launcher.verdict.saved_run import WatchedRun

    if not 0.2 <= every <= 3600:
        raise InputError(f"⟨every⟩ {every:g}: use 0.2 to 3600 seconds")
    watched = WatchedRun(Path(run), Path(metrics) if metrics is not None else None)
    console = Console()
    if console.is_terminal and not once:
        report = _live(watched, every, console)
    else:
        report = _lines(watched, every, once)
    return report.exit_code if report.outcome != "running" else 0


def _live(watched: WatchedRun, every: float, console: Console) -> RunReport:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from zerokit.report.render import parts

    folder = watched.path if watched.path.is_dir() else watched.path.parent
    with Live(console=console, auto_refresh=False) as live:
        while True:
            report, alarms = watched.look()
            notes = [Text(f"ALARM {text}", style="bold red") for text in alarms]
            shown = parts(report, traceback=False, width=console.width, folder=folder)
            live.update(Group(*shown, *notes), refresh=True)
            if watched.is_over(report):
                return report
            time.sleep(every)


def _lines(watched: WatchedRun, every: float, once: bool) -> RunReport:
    said_alarms: set[str] = set()
    announced = once
    while True:
        report, alarms = watched.look()
        if not announced and not watched.is_over(report):
            say("the run is in progress; a line follows for each new alarm and for its end")
        announced = True
        for text in alarms:
            if text not in said_alarms:
                click.echo(f"ALARM {text}")
                said_alarms.add(text)
        if once or watched.is_over(report):
            steps, count = max((rank.steps for rank in report.ranks), default=0), len(report.ranks)
            click.echo(f"{report.outcome.words}: {counted(count, 'rank')}, step {steps}")
            over = watched.is_over(report)
            say("the run has ended" if over else "the run is still in progress")
            return report
        time.sleep(every)
