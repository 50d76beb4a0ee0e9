"""The tuner: the planner's best few, each run for some steps on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.fields import Say
    from zerokit.script.entry_points import Target
    from zerokit.tuner.options import TuneOptions
    from zerokit.tuner.rehearsals import Rehearsing
    from zerokit.tuner.result import TuneResult

__all__ = ["tune"]


def tune(
    target: Target,
    options: Mapping[str, Any],
    settings: TuneOptions,
    *,
    say: Say,
    rehearsing: Rehearsing | None = None,
    show_progress: bool = True,
) -> TuneResult:
    """Run the planner's best plans, and keep the fastest; ``options`` are those of a plan.

    Args:
        rehearsing: rehearses the script with plans before they are tried; None: nothing is rehearsed.
        show_progress: a line on how far each run is goes to the terminal.

    Raises:
        InputError, NothingFits, NodeUnusable: no trial can run. ReportNotWritten: the disk is full.
    """
    import os
    import time

    from zerokit.planner.recipes import merged
    from zerokit.tuner.result import TuneResult, body
    from zerokit.tuner.tuning import Tuning

    started = time.monotonic()
    recipe, run_dir = settings["recipe"], settings["run_dir"]
    requested = merged(os.fspath(recipe), options) if recipe is not None else options
    tuning = Tuning.prepare(target, requested, settings, say, rehearsing, body, show_progress=show_progress)
    if settings["dry_run"]:
        return TuneResult(tuning=tuning)
    tuning.run(None if run_dir is None else os.fspath(run_dir))
    return TuneResult(tuning=tuning, seconds=time.monotonic() - started)
