"""What the user asks of a launch, and what is to be run: given, and never changed.

To add an option: a field of :class:`LaunchArguments`, and what it does.
"""

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

from zerokit.errors import InputError
from zerokit.fields import Say, silent
from zerokit.launcher.backends import BACKENDS
from zerokit.options import Option, check_options, one_of, seconds

if TYPE_CHECKING:
    from zerokit.launcher.checkpoint import ResumePoint
    from zerokit.planner.plan_result import PlanResult
    from zerokit.script.entry_points import Target

Style = Literal["auto", "raw", "accelerate", "trainer", "none"]
ShownRanks = Literal["first", "all", "none"]
PathLike = str | os.PathLike[str]
RANKS = (1, 65536)


def _moments(value: object, name: str) -> object:
    """A check for moments of a snapshot. Raises InputError: one is neither oom nor the number of a step."""
    words = str(value).split(",")
    if not all(word == "oom" or (word.isdecimal() and int(word) > 0) for word in words):
        raise InputError(f"{name}: {value!r}; use oom, the number of an optimizer step, or both: oom,3")
    return value


@dataclass(frozen=True, slots=True)
class LaunchArguments:
    """What a user may ask of a launch: the command's options, and the arguments of ``zerokit.launch()``."""

    script: PathLike | None = None
    arguments: Sequence[str] = ()
    _: KW_ONLY
    plan: Annotated[Optional["PathLike | PlanResult"], Option("Plan", "DIR")] = None
    """A folder (or plan.yaml) that `zerokit plan` wrote. [default: zerokit-plan, if it exists]"""
    no_plan: Annotated[bool, Option("Plan")] = False
    """Run without a plan, even if zerokit-plan exists."""
    deepspeed: Annotated[PathLike | None, Option("Plan", "FILE")] = None
    """A DeepSpeed JSON of your own in place of a plan; nothing is predicted."""
    recipe: Annotated[PathLike | None, Option("Plan", "NAME")] = None
    """Plan from a recipe first, and run that⟪; KEY=VALUE before SCRIPT changes it⟫."""
    accept_mismatch: Annotated[bool, Option("Plan")] = False
    """Run a script whose own configuration contradicts the plan, or a DeepSpeed file with errors."""
    module: Annotated[str | None, Option("Script", "PKG.MOD", spellings=("-m", "--module"))] = None
    """Run a module, as python -m does, instead of a script."""
    style: Annotated[Style, Option("Script")] = "auto"
    """How the script takes its DeepSpeed configuration; auto reads its source."""
    no_arguments: Annotated[bool, Option("Script")] = False
    """Add nothing from the plan to the script's arguments."""
    no_trackers: Annotated[bool, Option("Script")] = False
    """Log no memory to the TensorBoard, W&B, MLflow or Trackio that the script uses."""
    gpus: Annotated[int | None, Option("Ranks", "N", between=RANKS)] = None
    """Ranks in all, one on each GPU. [default: the plan's number]"""
    num_ranks: Annotated[int | None, Option("Ranks", "N", between=RANKS)] = None
    """Ranks in all, on GPUs or CPUs. [default: the plan's number]"""
    device: Annotated[Literal["auto", "cuda", "cpu"], Option("Ranks")] = "auto"
    """Where the ranks run; auto: CUDA where there is a GPU, else CPU."""
    nodes: Annotated[int | None, Option("Ranks", "N", between=RANKS)] = None
    """Use the first N hosts of the hostfile."""
    hostfile: Annotated[PathLike | None, Option("Ranks", "FILE")] = None
    """Machines to run on, one line each: NAME slots=N."""
    master_port: Annotated[int | None, Option("Ranks", "PORT")] = None
    """Where the ranks meet. [default: a free port]"""
    launcher: Annotated[str, Option("Ranks", "|".join(BACKENDS), one_of(*BACKENDS))] = "deepspeed"
    """What starts the ranks."""
    heartbeat: Annotated[float | None, Option("Failures", "SECONDS", seconds)] = None
    """Time without progress after which the run counts as hung; 0: never. [default: adapts to the run, from
    60 s (300 s for what it does for the first time) to 600 s]"""
    grace: Annotated[float, Option("Failures", "SECONDS", seconds)] = 10.0
    """When ranks are stopped: time from SIGTERM to SIGKILL."""
    max_restarts: Annotated[int, Option("Failures", "N", between=(0, 1000))] = 0
    """After a failure or a hang, restart the script, at most N times, from the newest checkpoint that every
    rank finished writing."""
    resume_option: Annotated[str | None, Option("Failures", "OPTION")] = None
    """How the script takes a checkpoint: an option of its own, with {folder} and {tag} filled in where they
    stand in it. A Trainer needs none; empty: it finds its checkpoint by itself."""
    resume: Annotated[PathLike | None, Option("Failures", "RUN")] = None
    """Go on from the newest whole checkpoint of an earlier run, on as many ranks as this launch has."""
    retry_smaller: Annotated[bool, Option("Failures")] = False
    """After an out-of-memory error, run the next plan that would fit, at most 3 times."""
    snapshot: Annotated[str | None, Option("Failures", "WHEN", _moments)] = None
    """Each rank writes a memory snapshot for `zerokit explain` into the run folder: oom, where an allocation
    fails; a number, after that optimizer step; several with commas between, oom,3."""
    no_rehearsal: Annotated[bool, Option("Prediction")] = False
    """Start on GPUs at once, though the plan was not rehearsed with this command."""
    rehearsal_seconds: Annotated[float | None, Option("Prediction", "SECONDS", seconds)] = None
    """Time for the rehearsal before the start [default: 30], or of a run that had none and was not its plan's
    job, took other memory or ran out of it [default: 180]; 0: none."""
    unconfined: Annotated[bool, Option("Prediction")] = False
    """Rehearse even where the kernel gives no namespaces: what native code writes then remains."""
    no_cache: Annotated[bool, Option("Prediction")] = False
    """Rehearse even where the answer of an unchanged rehearsal is kept."""
    no_host_probe: Annotated[bool, Option("Prediction")] = False
    """Do not measure this host's speed before its first launch on GPUs, some 15 s."""
    run_dir: Annotated[PathLike | None, Option("", "DIR", spellings=("--run-dir", "--out"))] = None
    """Run folder. [default: runs/<timestamp>-<script>]"""
    show: Annotated[ShownRanks, Option()] = "first"
    """Which ranks' output to pass on to the terminal."""
    dry_run: Annotated[bool, Option()] = False
    """Print the exact command and environment, and run nothing."""
    say: Say = silent

    def __post_init__(self) -> None:
        check_options(self, LaunchArguments)
        if self.num_ranks and self.gpus:
            raise InputError("⟨num_ranks⟩ and ⟨gpus⟩ say the same: give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions(LaunchArguments):
    """A launch that is to be made: what the user asked, and what came of it or was added. Seconds.

    Attributes:
        target: the script or module, as it is run.
        plan: a folder that ``zerokit plan`` wrote, or its plan.yaml.
        command: of zerokit, that was typed: in whose options the script's name ends.
        show_progress: a line on how far the run is goes to the terminal, and notes on a quiet one.
        stop_after_steps: every rank stops after so many optimizer steps; None: the script decides.
        limit_seconds: the run is ended after so long; None: never.
        resume_from: the checkpoint that a Trainer goes on from.
        point: what ``resume`` names, where the run begins there.
    """

    target: "Target"
    plan: str | None = None
    command: str = "launch"
    show_progress: bool = True
    stop_after_steps: int | None = None
    limit_seconds: float | None = None
    resume_from: str | None = None
    point: "ResumePoint | None" = None

    @classmethod
    def of(cls, asked: LaunchArguments, **more: Any) -> "LaunchOptions":
        """What the user asked for, and more."""
        own = {one.name: getattr(asked, one.name) for one in fields(LaunchArguments)}
        return cls(**own | more)

    @property
    def ranks(self) -> int | None:
        """How many were asked for; None: the plan says."""
        return self.num_ranks or self.gpus
