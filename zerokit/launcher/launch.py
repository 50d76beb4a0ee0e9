"""What is to be run, as it was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.launcher.verdict.as_planned import PlanCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is to be run, and how patiently.

    Attributes:
        environment: of the launcher, complete.
        script_arguments: as the user gave them; secrets among them are kept out of what is written.
        local_ranks: how many of the ranks run on this machine.
        remote: ranks on other machines too, which the guard cannot see.
        remote_hosts: their names; zerokit reaches them over ssh, or in a step of ``slurm_job``.
        slurm_job: the id of the job whose nodes they are.
        unshared_hosts: those of them that have a run folder of their own.
        alive_seconds: without a sign of life from here for so long, ranks on other hosts end themselves.
        heartbeat_seconds: without progress for so long, the run counts as hung; 0: never; None: what the run
            has shown decides (:mod:`zerokit.launcher.supervisor.heartbeat`).
        show_ranks: whose output goes on to the terminal: ``first``, ``all`` or ``none``.
        stop_after_steps: every rank stops after so many optimizer steps; None: the script decides.
        limit_seconds: the run is ended after so long; None: never.
        plan: ``request`` and ``chosen`` of the plan that the run is held to; None: to none.
        plan_check: what it is held to when it has ended well.
        style: how the script takes its configuration.
    """

    argv: list[str]
    environment: Mapping[str, str]
    cwd: Path
    run_dir: Path
    expected_ranks: int
    local_ranks: int
    host: str
    script_arguments: tuple[str, ...] = ()
    grace_seconds: float = 10.0
    heartbeat_seconds: float | None = None
    remote: bool = False
    remote_hosts: tuple[str, ...] = ()
    slurm_job: str | None = None
    unshared_hosts: tuple[str, ...] = ()
    alive_seconds: float = 120.0
    show_ranks: str = "first"
    predicted_peak_bytes: int | None = None
    stop_after_steps: int | None = None
    limit_seconds: float | None = None
    plan: Mapping[str, Any] | None = None
    plan_check: PlanCheck | None = None
    style: str = "none"
