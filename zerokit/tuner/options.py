"""How to tune: what is not planned for."""

from typing import Annotated, Literal, cast

from zerokit.errors import InputError
from zerokit.launcher.backends import BACKENDS
from zerokit.launcher.options import PathLike, ShownRanks
from zerokit.launcher.rank.step_limit import WARM_UP_STEPS
from zerokit.launcher.supervisor.heartbeat_default import TUNE_SECONDS
from zerokit.options import Option, one_of, seconds
from zerokit.planner.options import PlanOptions
from zerokit.units import parse_positive_int

FEWEST_STEPS = 3  # two to warm up, one to time


def _top(value: object, name: str) -> object:
    return parse_positive_int(cast(str, value), name, 20)


def _steps(value: object, name: str) -> object:
    steps = parse_positive_int(cast(str, value), name, 10_000)
    if steps < FEWEST_STEPS:
        raise InputError(f"{name} {steps}: at least {FEWEST_STEPS}, of which {WARM_UP_STEPS} warm up")
    return steps


def _timeout(value: object, name: str) -> object:
    if seconds(value, name) < 1:
        raise InputError(f"{name}: {value:g} must be at least 1 second")
    return value


class TuneOptions(PlanOptions, total=False):
    """How to tune; what is planned for stands in the plan's options."""

    top: Annotated[int | str, Option("Runs", "K", _top, default=3)]
    """How many plans to run."""
    steps: Annotated[int | str, Option("Runs", "N", _steps, default=10)]
    """Optimizer steps of each, two to warm up."""
    timeout: Annotated[float, Option("Runs", "SECONDS", _timeout, default=900.0)]
    """For each, loading included."""
    heartbeat: Annotated[float, Option("Runs", "SECONDS", seconds, default=TUNE_SECONDS)]
    """Time without progress that counts as hung; 0: never."""
    grace: Annotated[float, Option("Runs", "SECONDS", seconds, default=10.0)]
    """Time from SIGTERM to SIGKILL."""
    rehearsal_seconds: Annotated[float, Option("Runs", "SECONDS", seconds, default=600.0)]
    """On GPUs: after this time no further plan is rehearsed; 0 rehearses none."""
    unconfined: Annotated[bool, Option("Runs")]
    """Rehearse even where the kernel gives no namespaces: what native code writes then remains."""
    no_cache: Annotated[bool, Option("Runs")]
    """Rehearse even where the answer of an unchanged rehearsal is kept."""
    launcher: Annotated[str, Option("Runs", "|".join(BACKENDS), one_of(*BACKENDS), default="deepspeed")]
    """What starts the ranks."""
    style: Annotated[Literal["auto", "raw", "accelerate", "trainer"], Option("Runs", default="auto")]
    """As for `zerokit launch`."""
    module: Annotated[str | None, Option("Runs", "PKG.MOD", spellings=("-m", "--module"))]
    """Run a module, as python -m does."""
    recipe: Annotated[PathLike | None, Option("", "NAME|FILE")]
    """Options from a recipe or a plan.yaml; others given win."""
    against: Annotated[PathLike | None, Option("", "FILE")]
    """What you run today, a DeepSpeed JSON, to measure beside the plans."""
    out: Annotated[PathLike, Option("", "DIR", default="zerokit-plan")]
    """Where the fastest plan's files go."""
    run_dir: Annotated[PathLike | None, Option("", "DIR")]
    """Run folder. [default: runs/<timestamp>-tune-<script>]"""
    show: Annotated[ShownRanks, Option(default="none")]
    """Which ranks' output to pass on."""
    dry_run: Annotated[bool, Option()]
    """Print what would be run, and run nothing."""
