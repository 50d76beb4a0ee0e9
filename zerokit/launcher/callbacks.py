"""What a launch asks of rooms above the launcher, which it must not import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zerokit.launcher.launch import Launch
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import RehearsedRun, RunReport

Say = Callable[[str], None]


class Rehearsals(Protocol):
    """Rehearses the command of a launch that is over."""

    def of_oom(self, launch: Launch, report: RunReport, say: Say) -> RehearsedRun | None:
        """What it says of a run that ran out of memory."""

    def of_job(self, launch: Launch, report: RunReport, say: Say) -> PredictedAgain:
        """What it predicts for a run that was not its plan's job, or not its plan's bare loop."""


class HostSpeeds(Protocol):
    """Learns how fast the host is, for later predictions; never fails a launch."""

    def before(self, launch: Launch, say: Say) -> None:
        """The devices are free still."""

    def after(self, launch: Launch, report: RunReport) -> None:
        """The run is over, and its report is written."""
