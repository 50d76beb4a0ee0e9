"""How to tune: what is not planned for."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.errors import InputError
from zerokit.launcher.rank.step_limit import WARM_UP_STEPS
from zerokit.launcher.supervisor.heartbeat_default import TUNE_SECONDS
from zerokit.planner.plan_folder import DEFAULT_FOLDER
from zerokit.tuner.trial import FEWEST_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """How to tune; what is planned for stands in the plan's options.

    Attributes:
        top: how many plans to run.
        steps: optimizer steps of each, two of them to warm up.
        timeout: seconds for each, loading included.
        out: where the fastest plan's files go.
        heartbeat: seconds without progress that count as hung; 0: never.
        grace: seconds from SIGTERM to SIGKILL.
        show: which ranks' output to pass on: ``first``, ``all`` or ``none``.
        show_progress: a line on how far each run is goes to the terminal.
        rehearsal_seconds: on GPUs the script is rehearsed with each plan first; after so long no further
            one is. 0: none is.
    """

    top: int = 3
    steps: int = 10
    timeout: float = 900.0
    out: str = DEFAULT_FOLDER
    launcher: str = "deepspeed"
    style: str = "auto"
    heartbeat: float = TUNE_SECONDS
    grace: float = 10.0
    show: str = "none"
    show_progress: bool = True
    rehearsal_seconds: float = 600.0

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            InputError: names the setting.
        """
        for name, least in (("timeout", 1), ("heartbeat", 0), ("grace", 0), ("rehearsal_seconds", 0)):
            seconds = getattr(self, name)
            if not least <= seconds <= 1e6:
                raise InputError(f"⟨{name}⟩ {seconds:g}: use {least} to 1000000 seconds")
        if self.show not in ("first", "all", "none"):
            raise InputError(f"⟨show⟩ {self.show}: use first, all or none")
        if self.steps < FEWEST_STEPS:
            raise InputError(
                f"⟨steps⟩ {self.steps}: at least {FEWEST_STEPS}, of which {WARM_UP_STEPS} warm up"
            )
