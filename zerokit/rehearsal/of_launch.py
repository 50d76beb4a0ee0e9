"""What a rehearsal of a launch's command says: told after the launch ran out of memory."""

from __future__ import annotations

from collections.abc import Callable

from zerokit.domain.hardware import Gpu
from zerokit.errors import ZerokitError
from zerokit.launcher.launch import Launch
from zerokit.rehearsal.conduct import RehearsalRequest, rehearse
from zerokit.rehearsal.script import PlanUse
from zerokit.report.schema import RehearsedRun, RunReport

MOST_SECONDS = 300.0


def rehearse_launch(
    launch: Launch, report: RunReport, say: Callable[[str], None], seconds: float = MOST_SECONDS
) -> RehearsedRun | None:
    """Rehearse the command that ran out of a GPU's memory, on the rank that did; None where it was no GPU's,
    or the user interrupts it."""
    failure = report.first_failure
    on_gpu = launch.command.set_variables.get("ZEROKIT_DEVICE") == "cuda"
    if not on_gpu or failure is None or (failure.oom is not None and failure.oom.memory != "gpu"):
        return None
    gpu, why = _gpu(launch)
    if gpu is None:
        return RehearsedRun(stopped=f"not rehearsed: {why}")
    say(f"rehearsing the command that ran out of memory, {seconds:g} s at most (Ctrl-C skips it)")
    options = launch.options
    try:
        done = rehearse(
            RehearsalRequest(
                target=options.target,
                gpu=gpu,
                gpus=launch.expected_ranks,
                rank=failure.rank,
                launcher=options.launcher,
                plan=PlanUse(
                    folder=options.plan,
                    no_arguments=options.no_arguments,
                    accept_mismatch=options.accept_mismatch,
                ),
                step_time=False,
                limit_seconds=seconds,
            )
        )
    except ZerokitError as error:
        return RehearsedRun(stopped=f"not rehearsed: {error}")
    except KeyboardInterrupt:
        return None
    (rank,) = done.ranks
    return RehearsedRun(
        peak_allocated_bytes=rank.peak_allocated_bytes or None,
        peak_phase=rank.peak_phase or None,
        min_vram_bytes=done.min_vram_bytes,
        fits=done.fits,
        stopped=None if done.stopped is None else f"{done.stopped.location}: {done.stopped.reason}",
    )


def _gpu(launch: Launch) -> tuple[Gpu | None, str]:
    """This machine's, else the plan's."""
    from zerokit.catalog import gpus
    from zerokit.machine.detect import detect

    found, why = detect().catalog_gpu()
    named = ((launch.plan or {}).get("cluster") or {}).get("gpu")
    if found is None and isinstance(named, str) and named != "cpu":
        return gpus.lookup(named), ""
    return found, why
