"""What the user asks of a rehearsal."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from zerokit.fields import Say, silent
from zerokit.launcher.options import RANKS, PathLike
from zerokit.options import Option


@dataclass(frozen=True, slots=True)
class RehearsalArguments:
    """The options of ``zerokit rehearse``, and the arguments of ``zerokit.rehearse()``."""

    script: PathLike | None = None
    arguments: Sequence[str] = ()
    _: KW_ONLY
    plan: Annotated[PathLike | None, Option("Plan", "DIR")] = None
    """A folder (or plan.yaml) that `zerokit plan` wrote."""
    accelerate: Annotated[PathLike | None, Option("Plan", "FILE")] = None
    """In place of a plan: the YAML of `accelerate launch --config_file`, for scripts that it reaches."""
    no_arguments: Annotated[bool, Option("Plan")] = False
    """Add no option from the plan to the script's own."""
    accept_mismatch: Annotated[bool, Option("Plan")] = False
    """Run a script that contradicts the plan all the same."""
    gpus: Annotated[int | None, Option("Hardware", "N", between=RANKS)] = None
    """Ranks in all. [default: the plan's, those of ⟨accelerate⟩, or 1]"""
    gpu: Annotated[str | None, Option("Hardware", "NAME")] = None
    """A GPU of `zerokit gpus`. [default: the plan's, else this machine's, else h100-sxm-80gb]"""
    vram: Annotated[str | int | None, Option("Hardware", "SIZE")] = None
    """Memory per GPU, such as 24GiB."""
    host_speed: Annotated[float | None, Option("Hardware", "FACTOR", between=(0.05, 20))] = None
    """The run's host over the reference host, as `zerokit doctor --measure` prints it on that machine."""
    module: Annotated[str | None, Option("Rehearsal", "PKG.MOD", spellings=("-m", "--module"))] = None
    """Run a module, as python -m does, instead of a script."""
    rank: Annotated[int, Option("Rehearsal", "N", between=(0, None))] = 0
    """Which rank to run."""
    ranks: Annotated[str | Sequence[int] | None, Option("Rehearsal", "LIST")] = None
    """Several ranks, one after another, such as 0,7 or 0,last."""
    steps: Annotated[int, Option("Rehearsal", "N", between=(1, 1000))] = 5
    """Optimizer steps until training ends; fewer where the peaks of all phases repeat. A loop that does
    something every so many rounds gets one more."""
    launcher: Annotated[str, Option("Rehearsal", "auto|none|deepspeed|torchrun|accelerate")] = "auto"
    """Whose environment the script gets."""
    versions: Annotated[PathLike | None, Option("Rehearsal", "FILE")] = None
    """Versions of the run: a lock file, requirements, or `zerokit doctor --json` of its machine. Differences
    are warned of."""
    whole: Annotated[bool, Option("Rehearsal")] = False
    """Rehearse all layers of the model, even where a few of them tell what all take."""
    unconfined: Annotated[bool, Option("Rehearsal")] = False
    """Rehearse even where the kernel gives no namespaces: what native code writes then remains."""
    no_cache: Annotated[bool, Option("Rehearsal")] = False
    """Rehearse even where the answer of an unchanged rehearsal is kept."""
    baseline: Annotated[PathLike | None, Option("Baseline", "FILE")] = None
    """Compare with the rehearsal kept in FILE, and end with exit code 15 where memory or step time grew; FILE
    is written where it does not exist."""
    max_growth: Annotated[str | None, Option("Baseline", "SHARE")] = None
    """By how much each figure may be above the baseline's. [default: 0.2%]"""
    out: Annotated[PathLike | None, Option("", "DIR")] = None
    """Write rehearsal.json and the script's output there."""
    say: Say = silent
