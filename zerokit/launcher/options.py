"""What the user asks of a launch, and what is to be run: given, and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError
from zerokit.script.entry_points import Target

LAUNCHERS = ("deepspeed", "accelerate", "torchrun")
SHOWN_RANKS = ("first", "all", "none")
BOOTSTRAP = Path(__file__).with_name("rank") / "bootstrap.py"
AGENT = Path(__file__).with_name("agent.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of ``zerokit launch``. Seconds; ``None``: not given.

    Attributes:
        command: of zerokit, that was typed: in whose options the script's name ends.
        plan: a folder that ``zerokit plan`` wrote, or its plan.yaml.
        deepspeed: a DeepSpeed JSON of the user's own, in place of a plan.
        device: ``auto``, ``cuda`` or ``cpu``.
        style: how the script takes its configuration; ``auto`` reads its source.
        run_dir: by default ``runs/<timestamp>-<script>``.
        grace_seconds: from SIGTERM to SIGKILL.
        heartbeat_seconds: without progress for so long, the run counts as hung; 0: never; None: what the run
            has shown decides (:mod:`zerokit.launcher.supervisor.heartbeat_default`).
        asks_for_gpus: its number of ranks is one of GPUs.
        show_ranks: whose output goes on to the terminal: ``first``, ``all`` or ``none``.
        show_progress: a line on how far the run is goes to the terminal, and notes on a quiet one.
        stop_after_steps: every rank stops after so many optimizer steps; None: the script decides.
        resume_option: how the script is told of a checkpoint, ``{folder}`` and ``{tag}`` filled in; None: a
            Trainer needs none. resume_from: the checkpoint that a Trainer goes on from.
        limit_seconds: the run is ended after so long; None: never.
        no_arguments: nothing is added to the script's own arguments.
        accept_mismatch: the script may contradict its plan.
        no_trackers: memory is not logged to the tracker that the script uses.
    """

    target: Target
    command: str = "launch"
    plan: str | None = None
    deepspeed: str | None = None
    device: str = "auto"
    launcher: str = "deepspeed"
    style: str = "auto"
    run_dir: str | None = None
    grace_seconds: float = 10.0
    heartbeat_seconds: float | None = None
    num_ranks: int | None = None
    asks_for_gpus: bool = False
    nodes: int | None = None
    hostfile: str | None = None
    master_port: int | None = None
    show_ranks: str = "first"
    show_progress: bool = True
    stop_after_steps: int | None = None
    limit_seconds: float | None = None
    resume_option: str | None = None
    resume_from: str | None = None
    no_arguments: bool = False
    accept_mismatch: bool = False
    no_trackers: bool = False

    def __post_init__(self) -> None:
        if self.show_ranks not in SHOWN_RANKS:
            raise InputError(f"⟨show⟩ {self.show_ranks}: use first, all or none")


def check_launcher(launcher: str) -> None:
    """Refuse a launcher that there is not.

    Raises:
        InputError: names those that there are.
    """
    if launcher not in LAUNCHERS:
        raise InputError(f"⟨launcher⟩ {launcher}: use one of {', '.join(LAUNCHERS)}")
