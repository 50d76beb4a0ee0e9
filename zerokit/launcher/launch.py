"""One launch, as it was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zerokit.launcher.backends import LaunchCommand
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Placement
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import RehearsedRun, RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that can be shown or started.

    Attributes:
        options: what was asked for.
        placement: where the ranks run.
        environment: of the launcher, complete.
        host: this machine.
        config: the DeepSpeed configuration as the script gets it; None without one.
        accelerate: the file that ``accelerate launch`` is given, of a plan for FSDP2; None: of no such plan.
        plan: the plan file's ``request``, ``chosen`` and ``cluster``; None without one.
        planned_ranks: what it was made for.
        held_to: the plan that the run is held to, as these devices can do it; None: to none.
        predicted_peak_bytes: of GPU memory allocated, of the fullest rank.
        style: how the script takes its configuration.
        added_arguments: options that the script gets from the plan.
        micro_batch_free: whether the script takes its micro-batch from the configuration.
        script_options: that the script's parser knows.
        reads_checkpoint: whether it takes a checkpoint by ``--resume_from_checkpoint``.
        why_no_training: what the script's arguments lack to train; None: nothing that is known.
        notes: what is worth saying about it, one line each.
        not_rehearsed: the note that its plan was not rehearsed with this command; None: there is none.
        names_plan: that note has a command that plans with the script, and rehearses it.
    """

    options: LaunchOptions
    placement: Placement
    command: LaunchCommand
    environment: Mapping[str, str]
    cwd: Path
    run_dir: Path
    host: str
    config: dict[str, Any] | None = None
    accelerate: dict[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    plan_file: Path | None = None
    planned_ranks: int | None = None
    held_to: Mapping[str, Any] | None = None
    predicted_peak_bytes: int | None = None
    style: str = "none"
    added_arguments: tuple[str, ...] = ()
    micro_batch_free: bool = False
    script_options: frozenset[str] = frozenset()
    reads_checkpoint: bool = False
    why_no_training: str | None = None
    notes: tuple[str, ...] = ()
    not_rehearsed: str | None = None
    names_plan: bool = False

    @property
    def engine(self) -> str | None:
        """What is to divide the training: ``deepspeed`` or ``fsdp2``; None: the script is given neither."""
        if self.accelerate is not None:
            return "fsdp2"
        return None if self.config is None else "deepspeed"

    @property
    def problems(self) -> list[str]:
        """What was wrong with it from the start, for its report."""
        untold = self.why_no_training is not None and self.engine is None  # else its verdict says it
        more = [f"as far as its source tells, nothing was trained: {self.why_no_training}"] if untold else []
        return [*self.placement.problems, *more]

    @property
    def expected_ranks(self) -> int:
        """How many ranks it has, on all machines together."""
        return self.placement.ranks

    @property
    def rehearsal(self) -> str:
        """Of this command: ``done`` for its plan, done on ``other devices``, ``named`` in the notes, or
        ``none``."""
        if self.names_plan:
            return "named"
        chosen = (self.plan or {}).get("chosen", {})
        if "rehearsed" not in chosen or self.options.no_arguments:
            return "none"
        is_there = self.placement.devices.kind == "cuda" and self.placement.ranks == self.planned_ranks
        return "done" if is_there else "other devices"


Say = Callable[[str], None]


class Rehearsals(Protocol):
    """Rehearses the command of a launch; ``done``: what was rehearsed before the start; None: nothing."""

    done: Any

    def before(self, launch: Launch, say: Say) -> Launch:
        """The launch, once it is rehearsed, if that is worth it. Raises NothingFits: it needs more memory
        than the GPU has. InputError: it would not be its plan's run, or ends at one of its arguments."""

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
