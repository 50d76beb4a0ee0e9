"""A run as its files tell: its report, or what the ranks have written so far while it lives."""

from __future__ import annotations

import shlex
import socket
import time
from pathlib import Path

from zerokit.emit.plan_file import read_of_run
from zerokit.errors import InputError
from zerokit.launcher.locks import is_launch_alive
from zerokit.launcher.rank_file import TICK_SECONDS, find_rank_files
from zerokit.launcher.run_folder import COMMAND_FILE, LOGS_FOLDER, REPORT_FILE
from zerokit.launcher.verdict.report import report_of_folder
from zerokit.machine.host import detect_host
from zerokit.report.html import write_page
from zerokit.report.live import Alarm, alarms, openmetrics
from zerokit.report.schema import RunReport, load_report

_PATIENCE_SECONDS = 15.0
"""From the ranks' last words to the launcher's report."""
_MOST_NAMED = 3  # runs of a folder
_NOT_LAUNCHED = (
    "of a run that zerokit did not launch, `zerokit rehearse SCRIPT ARGS` predicts the memory, or "
    "`zerokit estimate --model NAME --gpus N --gpu NAME --explain`"
)


def load_run(path: Path) -> RunReport:
    """The report of a run folder or of a report.json; of the ranks' own files while the run lives. Raises
    InputError: there is no such run, or its report is damaged."""
    if not path.exists():
        raise InputError(f"{path}: no such run; give a run folder or its report.json{newest_runs()}")
    if not path.is_dir():
        try:
            return load_report(path)
        except InputError as error:
            if path.suffix == ".json":
                raise
            raise InputError(
                f"{path} is neither a run folder nor its report.json, and other logs are not read; "
                f"{_NOT_LAUNCHED}"
            ) from error
    report_path = path / REPORT_FILE
    if report_path.exists():
        return load_report(report_path)
    if not find_rank_files(path):
        if (why := _nothing_recorded(path)) is not None:
            raise InputError(why)
        names = newest_runs(path, "; of the runs in it, the newest")
        raise InputError(
            f"{path} is not a run folder: it has neither report.json nor rank-*.jsonl{names}; {_NOT_LAUNCHED}"
        )
    plan, problems = read_of_run(path)
    return report_of_folder(path, plan, problems)


def is_starting(path: Path) -> bool:
    """Whether a launch has made this run folder, and none of its ranks has recorded anything yet."""
    if not path.is_dir() or (path / REPORT_FILE).exists() or find_rank_files(path):
        return False
    return is_launch_alive(path)


def _nothing_recorded(path: Path) -> str | None:
    """Why a run folder has nothing to show; None where it is no run folder."""
    if is_starting(path):
        run = shlex.quote(str(path))
        return (
            f"{path}: the run is starting, and nothing was recorded yet; `zerokit watch {run}` waits for it"
        )
    if not (path / COMMAND_FILE).exists():
        return None
    logs = f"; what was printed is in {path / LOGS_FOLDER}" if (path / LOGS_FOLDER).is_dir() else ""
    return f"{path}: nothing was recorded: its launch ended before a rank began{logs}"


def newest_runs(folder: Path = Path("runs"), introduction: str = "; the newest") -> str:
    """``; the newest: runs/20260131-120000-train``, for a message; empty where there are none."""
    found = runs_in(folder)
    return f"{introduction}: {', '.join(map(str, found[:_MOST_NAMED]))}" if found else ""


def runs_in(folder: Path = Path("runs")) -> list[Path]:
    """The runs of a folder, the newest first; none where it cannot be read."""
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
        found = [path for path in found if (path / REPORT_FILE).exists() or find_rank_files(path)]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


class WatchedRun:
    """A run (its folder or report.json) that is looked at again and again; ``metrics``: a file that keeps the
    figures of the last look, as OpenMetrics text."""

    def __init__(self, path: Path, metrics: Path | None = None) -> None:
        self.path = path
        self._metrics = metrics
        self._ended_since: float | None = None

    @property
    def folder(self) -> Path:
        """The run's."""
        return self.path if self.path.is_dir() else self.path.parent

    def look(self) -> tuple[RunReport, list[Alarm]]:
        """The run as it is now, and its alarms. Raises InputError: there is no such run, or its report is
        damaged. ReportNotWritten: the metrics cannot be written."""
        report = load_run(self.path)
        is_here = {rank.host for rank in report.ranks} == {socket.gethostname()}
        raised = alarms(report, detect_host().ram_bytes if is_here else None, TICK_SECONDS)
        if self._metrics is not None:
            write_page(self._metrics, openmetrics(report, len(raised)))
        return report, raised

    def is_over(self, report: RunReport) -> bool:
        """Whether what was just seen is the last there will be: the report is written, or the ranks ended and
        none comes."""
        if report.outcome == "running":
            self._ended_since = None
            return False
        now = time.monotonic()
        self._ended_since = now if self._ended_since is None else self._ended_since
        has_report = not self.path.is_dir() or (self.path / REPORT_FILE).exists()
        return has_report or now - self._ended_since > _PATIENCE_SECONDS
