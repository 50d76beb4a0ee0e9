"""The tuner: the planner's best few, each run for some steps on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.planner.memory_source import Say
    from zerokit.script.entry_points import Target
    from zerokit.tuner.rehearsals import Rehearse
    from zerokit.tuner.result import TuneResult
    from zerokit.tuner.settings import TuneSettings

__all__ = ["tune"]


def tune(
    target: Target,
    options: Mapping[str, Any],
    settings: TuneSettings,
    *,
    recipe: str | None = None,
    run_dir: str | None = None,
    dry_run: bool = False,
    say: Say,
    rehearse: Rehearse | None = None,
) -> TuneResult:
    """Run the planner's best plans, and keep the fastest; ``options`` are those of a plan.

    Args:
        rehearse: rehearses the script with a plan before it is tried; None: nothing is rehearsed.

    Raises:
        InputError, NothingFits, NodeUnusable: no trial can run. ReportNotWritten: the disk is full.
    """
    import time

    from zerokit.planner.recipes import merged
    from zerokit.tuner.result import TuneResult, body
    from zerokit.tuner.tuning import Tuning

    started = time.monotonic()
    requested = merged(recipe, options) if recipe is not None else options
    tuning = Tuning.prepare(target, requested, settings, say, rehearse, body)
    if dry_run:
        return TuneResult(tuning=tuning)
    tuning.run(run_dir)
    return TuneResult(tuning=tuning, seconds=time.monotonic() - started)
