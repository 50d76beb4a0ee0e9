"""A launch's command rehearsed: before its start, or after a run that was not and ran out of memory or not
as its plan predicts."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from zerokit.catalog import gpus
from zerokit.commands import command_text
from zerokit.domain.hardware import Gpu
from zerokit.errors import InputError, NothingFits, ZerokitError
from zerokit.fields import as_options
from zerokit.launcher.launch import Launch
from zerokit.launcher.rehearsed_plan import script_words
from zerokit.launcher.secrets import Secrets
from zerokit.messages import listed
from zerokit.notes import warning
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.script import PlanUse
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import RehearsedRun, RunReport
from zerokit.report.what_ran import differences, of_code, options_to_plan, unlike_plan, unlike_rehearsal
from zerokit.report.words import why_bare
from zerokit.script.entry_points import Target
from zerokit.units import format_gib

MOST_SECONDS = 180.0
BEFORE_SECONDS = 30.0
"""For so long GPUs may wait for a rehearsal."""
_CUBLAS = "cuBLAS workspace"
_KEEPS_ON_CPU = {"trainer": ("--use_cpu", "--no_cuda"), "accelerate": ("--cpu",)}
"""Switches of a script that would keep its rehearsal off the GPU."""
_TRUE = ("true", "1", "yes", "y", "t")

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class LaunchRehearsals:
    """Rehearsals of a launch: one before its start or after its end.

    Attributes:
        seconds: one after a run is ended after so long; 0: there are none.
        before_seconds: one before the start is; 0: there is none.
        done: the one before the start; None: there was none, or it was abandoned.
        unconfined, no_cache: as of a :class:`RehearsalRequest`.
    """

    seconds: float = MOST_SECONDS
    before_seconds: float = BEFORE_SECONDS
    unconfined: bool = False
    no_cache: bool = False
    done: Rehearsal | None = None

    def before(self, launch: Launch, say: Say) -> Launch:
        """Rehearse a command on GPUs that its plan was not rehearsed with.

        What hinders it is told, and the launch starts.

        Raises:
            NothingFits: it needs more memory than the GPU has.
            InputError: it would not be the run that its plan says, or ends at one of its arguments.
        """
        on_gpu = launch.command.set_variables.get("ZEROKIT_DEVICE") == "cuda"
        if not on_gpu or not self.before_seconds or launch.rehearsal == "done":
            return launch
        gpu, why = _gpu(launch)
        if gpu is None:
            say(f"not rehearsed before the start: {why}")
            return launch
        limit = f"{self.before_seconds:g} s"
        say(f"rehearsing the command before the start, {limit} at most (⟨no_rehearsal=True⟩ skips it)")
        began = time.monotonic()
        try:
            done = rehearse(self._request(launch, gpu, 0, step_time=True, seconds=self.before_seconds))
        except ZerokitError as error:
            say(f"not rehearsed, the launch starts: {error.marked}")
            return launch
        except Exception as error:  # a fault of the rehearsal must not hinder a run
            say(f"its rehearsal failed, the launch starts: {type(error).__name__}: {error}")
            return launch
        if done.fits is False:
            raise NothingFits(_why_too_large(done, launch))
        if time.monotonic() - began >= self.before_seconds and not done.complete:
            say(f"the rehearsal was not done after {limit}: the launch starts")
            return launch
        self.done = done
        how = f" (kept {done.when_kept})" if done.when_kept else ""
        say(f"rehearsed{how}: {done.verdict}")
        if done.stopped is not None and done.stopped.cause == "argument":
            raise InputError(f"{done.stopped.reason}; ⟨no_rehearsal=True⟩ starts the launch all the same")
        _hold_to_plan(done, launch, say)
        for text in done.warnings:
            say(warning("rehearsal", f"as rehearsed, {text}"))
        peak = done.ranks[0].peak_allocated_bytes
        return replace(
            launch, predicted_peak_bytes=peak if done.complete and peak else launch.predicted_peak_bytes
        )

    def of_oom(self, launch: Launch, report: RunReport, say: Say) -> RehearsedRun | None:
        """Rehearse the command that ran out of a GPU's memory, on the rank that did; None where it was no
        GPU's, the user interrupts it, or there are none."""
        failure = report.first_failure
        on_gpu = launch.command.set_variables.get("ZEROKIT_DEVICE") == "cuda"
        if not on_gpu or failure is None or (failure.oom is not None and failure.oom.memory != "gpu"):
            return None
        if (done := self.done) is None:
            if not self.seconds:
                return None
            gpu, why = _gpu(launch)
            if gpu is None:
                return RehearsedRun(stopped=f"not rehearsed: {why}")
            say(
                f"rehearsing the command that ran out of memory, {self.seconds:g} s at most (Ctrl-C skips it)"
            )
            try:
                done = rehearse(self._request(launch, gpu, failure.rank))
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
            stopped=_why_stopped(done),
        )

    def of_job(self, launch: Launch, report: RunReport, say: Say) -> PredictedAgain:
        """Predict what a run took: as rehearsed before its start, else as its fullest rank is rehearsed now.
        Whatever hinders it is told, and nothing is raised: the run is over, and its verdict stands."""
        if self.done is not None:
            return _prediction(self.done, launch, report, None, of_all=True)
        predicted = report.predicted_vs_measured
        assert predicted is not None
        gpu, why = _gpu(launch)
        if gpu is None:
            return PredictedAgain(why_not=f"the command was not rehearsed: {why}")
        # what the user types to rehearse it
        target, options = _off_cpu(launch), launch.options
        words = ["--plan", str(options.plan), "--gpu", gpu.name, "--rank", str(predicted.rank)]
        words += ["--gpus", str(launch.expected_ranks)]
        flags = (("--no-arguments", options.no_arguments), ("--accept-mismatch", options.accept_mismatch))
        words += [name for name, is_given in flags if is_given]
        words += [target.script] if target.script is not None else ["-m", str(target.module)]
        command: str | None = command_text(
            "rehearse", *Secrets(os.environ, target.arguments).argv([*words, *target.arguments])
        )
        if not self.seconds:
            why_not: str | None = as_options("the command was not rehearsed: ⟨rehearsal_seconds⟩ is 0")
            return PredictedAgain(why_not=why_not, command=command)
        try:
            why = "the run did another job than its plan's"
            if predicted.bare_loop is not None:
                why = f"{why_bare(predicted.bare_loop)}, but the run's memory differs"
            say(
                f"{report.outcome}; {why}: rehearsing the command to predict it, "
                f"{self.seconds:g} s at most (Ctrl-C skips it)"
            )
            step_time = report.gpu_measured
            done = rehearse(self._request(launch, gpu, predicted.rank, step_time=step_time))
            return _prediction(done, launch, report, command)
        except KeyboardInterrupt:
            why_not = "its rehearsal was interrupted"
        except ZerokitError as error:
            why_not = f"the command was not rehearsed: {as_options(str(error))}"
        except Exception as error:  # a fault of the rehearsal must not fail a run that went well
            why_not = f"its rehearsal failed: {type(error).__name__}: {error}"
        return PredictedAgain(why_not=why_not, command=command)

    def _request(
        self, launch: Launch, gpu: Gpu, rank: int, *, step_time: bool = False, seconds: float | None = None
    ) -> RehearsalRequest:
        options = launch.options
        use = PlanUse(
            folder=options.plan, style=options.style, no_arguments=options.no_arguments,
            deepspeed=os.fspath(options.deepspeed) if options.deepspeed is not None else None,
            accept_mismatch=options.accept_mismatch,
        )  # fmt: skip
        return RehearsalRequest(
            target=_off_cpu(launch), gpu=gpu, gpus=launch.expected_ranks, rank=rank, plan=use,
            launcher=options.launcher, step_time=step_time, limit_seconds=seconds or self.seconds,
            unconfined=self.unconfined, no_cache=self.no_cache, whole=False,
        )  # fmt: skip


def _hold_to_plan(done: Rehearsal, launch: Launch, say: Say) -> None:
    """Say where the command does another job than its plan's. Raises InputError: so that the run would end as
    not planned."""
    if done.engine is None or launch.held_to is None:
        return
    details = {"generate": {"count": int("generate" in done.ranks[0].phases)}}
    ranks = [{"engine": done.engine, "phase_details": details}] * launch.expected_ranks
    found = differences(launch.held_to, ranks)
    not_planned = unlike_plan(launch.held_to, launch.style, ranks)
    by_code = of_code(launch.held_to, done.asked)
    not_planned += [one.text for one in by_code]
    for one in found:
        if launch.options.accept_mismatch or one.text not in not_planned:
            say(warning("rehearsal", f"as rehearsed, {one.text}"))
    if launch.options.accept_mismatch or not not_planned:
        return
    words = options_to_plan(launch.held_to, [*found, *by_code])
    again = command_text("plan", "--recipe", str(launch.plan_file), *words) if launch.plan_file else ""
    ways_out = (
        f"change it{f', plan again for what it does: `{again}`' if again and words else ''}, or run it all "
        "the same, with ⟨accept_mismatch=True⟩⟪ before the script⟫"
    )
    raise InputError(listed("the script contradicts the plan, as rehearsed", not_planned, ways_out))


def _why_too_large(done: Rehearsal, launch: Launch) -> str:
    """Both figures, and what to type."""
    planned = ((launch.plan or {}).get("chosen") or {}).get("estimate") or {}
    beside = f"; its plan says {format_gib(planned['min_vram_bytes'])}" if "min_vram_bytes" in planned else ""
    words = ["plan", "--gpus", str(launch.expected_ranks), "--", *script_words(launch.options.target)]
    lower = f"; the most would free: {done.changes[0].what}" if done.changes else ""
    return (
        f"{launch.options.target.name} {done.verdict} (rehearsed{beside}), and was not started{lower}; "
        f"{command_text(*words)} plans for it, ⟨no_rehearsal=True⟩ starts it all the same"
    )


def _prediction(
    done: Rehearsal, launch: Launch, report: RunReport, command: str | None, *, of_all: bool = False
) -> PredictedAgain:
    """A rehearsal as the prediction of a run. ``command``: that would rehearse it, for a user who wants to
    know more. ``of_all``: other ranks are taken to be like the rehearsed one, but for stages of a
    pipeline."""
    why_not = _why_unlike(done, report)
    if why_not is not None:
        if done.stopped is not None and done.stopped.location:
            command = None  # it would stop at the same line
        return PredictedAgain(why_not=why_not, command=command)
    # where there is no plan, there are no figures of a bare loop either
    chosen = (launch.plan or {"chosen": {"rehearsed": {}}}).get("chosen") or {}
    estimate = _estimate(done, launch, on_cpu=not report.on_gpu)
    if of_all and not (done.step is not None and done.step.missing):
        estimate["per_rank"][0]["ranks"] = [0, launch.expected_ranks - 1]
    plan = {**(launch.plan or {}), "chosen": {**chosen, "estimate": estimate}}
    title = gpus.load(done.gpu).title
    location = f" on a simulated {title}" if report.on_gpu else "; a simulated GPU stands for host memory"
    fed = f"{done.fed.text}; " if done.fed is not None else ""
    note = f"rehearsed: {fed}rank {done.ranks[0].rank}, {done.steps} optimizer steps{location}"
    return PredictedAgain(by="rehearsal", plan=plan, note=note)


def _off_cpu(launch: Launch) -> Target:
    """The command without the switches that keep it on the CPU: a rehearsal is of a GPU."""
    target, arguments = launch.options.target, list[str]()
    switches = _KEEPS_ON_CPU.get(launch.style, ())
    after_switch = False
    for word in target.arguments:
        if not (after_switch and word.lower() in _TRUE) and word.partition("=")[0] not in switches:
            arguments.append(word)
        after_switch = word in switches
    return replace(target, arguments=tuple(arguments))


def _why_stopped(done: Rehearsal) -> str | None:
    if done.stopped is None:
        return None
    return ": ".join(filter(None, (done.stopped.location, done.stopped.reason)))


def _why_unlike(done: Rehearsal, report: RunReport) -> str | None:
    """Why the rehearsal is no prediction of the run; None: it is."""
    (rank,) = done.ranks
    if done.stopped is not None or not done.complete:
        device = "" if report.on_gpu else ", which simulates a GPU,"
        return f"its rehearsal{device} stopped: {_why_stopped(done) or 'no reason is known'}"
    if not done.steps or not rank.peak_allocated_bytes:
        return "its rehearsal saw no optimizer step"
    if rank.lower_bounds:
        bounds = sorted({text for texts in rank.lower_bounds.values() for text in texts})
        return f"its rehearsal is a lower bound: {', '.join(bounds)} is not modelled"
    engine = next((one.engine for one in report.ranks if one.rank == rank.rank), None)
    unlike = unlike_rehearsal(engine or {}, done.engine or {})
    return f"its rehearsal did another job: {'; '.join(unlike)}" if unlike else None


def _estimate(done: Rehearsal, launch: Launch, *, on_cpu: bool) -> dict[str, Any]:
    """As a plan's estimate holds it: of the rehearsed rank alone. CPU ranks have no cuBLAS workspaces."""
    (rank,) = done.ranks
    parts: Counter[str] = Counter()
    for row in rank.at_peak:
        parts[row.what] += row.bytes
    workspaces = parts.pop(_CUBLAS, 0) if on_cpu else 0
    phases = {name: size - workspaces * (name == rank.peak_phase) for name, size in rank.phases.items()}
    nodes = int(((launch.plan or {}).get("request") or {}).get("nodes") or 1)
    return {
        "peak_allocated_bytes": rank.peak_allocated_bytes - workspaces,
        "min_vram_bytes": done.min_vram_bytes,
        "host_bytes_per_node": rank.host_bytes * launch.expected_ranks // nodes,
        "step_seconds": step.seconds if (step := done.step_of_run) is not None else None,
        "per_rank": [
            {
                "rank": rank.rank,
                "peak_allocated_bytes": rank.peak_allocated_bytes - workspaces,
                "peak_phase": rank.peak_phase,
                "phases": phases,
                "components": {name.replace(" ", "_"): size for name, size in parts.items()},
            }
        ],
    }


def _gpu(launch: Launch) -> tuple[Gpu | None, str]:
    """This machine's, else the plan's; for CPU ranks the one that a plan assumes where none is named."""
    from zerokit.machine.detect import detect
    from zerokit.planner.hardware import DEFAULT_GPU, gpu_of_plan

    gpu, why = detect().catalog_gpu()
    plan = launch.plan or {}
    cluster = plan.get("cluster") or {}
    if gpu is None and isinstance(cluster.get("gpu"), str):
        try:
            return gpu_of_plan(cluster, plan.get("request") or {}) or gpus.load(DEFAULT_GPU), ""
        except InputError as error:
            return None, as_options(str(error))
    return gpu, why
