"""``zerokit watch``: a run while it lives, and what is wrong with it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerokit.cli.base import Command
from zerokit.cli.report import load_run
from zerokit.cli.say import say
from zerokit.errors import InputError

if TYPE_CHECKING:
    from zerokit.report.schema import RunReport

_SECONDS = 2.0
_PATIENCE_SECONDS = 15.0  # from the ranks' last words to the launcher's report


@click.command("watch", cls=Command, short_help="Show a run while it lives, with alarms.")
@click.argument("run", metavar="RUN")
@click.option("--metrics", metavar="FILE", help="Keep the figures in FILE too, as OpenMetrics text.")
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option("--every", default=_SECONDS, show_default=True, metavar="SECONDS", help="How often to look.")
def command(run: str, metrics: str | None, once: bool, every: float) -> int:
    """Show RUN, a run folder, until it ends: memory and steps by rank, and alarms.

    Alarms: a rank that falls behind, memory near its end, allocator retries, memory that grows, skipped
    steps. In a pipe, a line is printed for each new alarm and for the end.
    """
    from rich.console import Console

    if not 0.2 <= every <= 3600:
        raise InputError(f"⟨every⟩ {every:g}: use 0.2 to 3600 seconds")
    folder, console = Path(run), Console()
    if console.is_terminal and not once:
        report = _live(folder, metrics, every, console)
    else:
        report = _lines(folder, metrics, every, once)
    return report.exit_code if report.outcome != "running" else 0


class _End:
    """Whether a run is over: its report is written, or its ranks ended and none comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._since: float | None = None

    def reached(self, report: RunReport) -> bool:
        """What was just read is the last there will be."""
        from zerokit.launcher.run_folder import REPORT_FILE

        if report.outcome == "running":
            self._since = None
            return False
        self._since = self._since if self._since is not None else time.monotonic()
        written = not self._folder.is_dir() or (self._folder / REPORT_FILE).exists()
        return written or time.monotonic() - self._since > _PATIENCE_SECONDS


def _look(folder: Path, metrics: str | None) -> tuple[RunReport, list[str]]:
    from zerokit.machine.host import detect_host
    from zerokit.report.alarms import alarms

    report = load_run(folder)
    found = alarms(report, detect_host().ram_bytes)
    if metrics is not None:
        from zerokit.report.html import write_page
        from zerokit.report.openmetrics import openmetrics

        write_page(Path(metrics), openmetrics(report, found))
    return report, found


def _live(folder: Path, metrics: str | None, every: float, console: object) -> RunReport:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from zerokit.report.render import parts

    assert isinstance(console, Console)
    end = _End(folder)
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            report, found = _look(folder, metrics)
            notes = [Text(f"ALARM {text}", style="bold red") for text in found]
            shown.update(Group(*parts(report, traceback=False, width=console.width), *notes), refresh=True)
            if end.reached(report):
                return report
            time.sleep(every)


def _lines(folder: Path, metrics: str | None, every: float, once: bool) -> RunReport:
    told: set[str] = set()
    end = _End(folder)
    while True:
        report, found = _look(folder, metrics)
        for text in found:
            if text not in told:
                click.echo(f"ALARM {text}")
                told.add(text)
        if once or end.reached(report):
            steps, count = max((rank.steps for rank in report.ranks), default=0), len(report.ranks)
            click.echo(f"{report.outcome}: {count} rank{'' if count == 1 else 's'}, step {steps}")
            if once and report.outcome == "running":
                say("the run is still going on")
            return report
        time.sleep(every)
