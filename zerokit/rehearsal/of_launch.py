"""A launch's command rehearsed after its run, where that ran out of memory or not as its plan predicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from zerokit.commands import command_text
from zerokit.domain.hardware import Gpu
from zerokit.errors import InputError, ZerokitError
from zerokit.fields import as_options
from zerokit.launcher.launch import Launch
from zerokit.launcher.secrets import Secrets
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.script import PlanUse
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import Predicted, RehearsedRun, RunReport
from zerokit.report.what_ran import unlike_rehearsal
from zerokit.report.words import why_bare
from zerokit.script.entry_points import Target

MOST_SECONDS = 180.0
_CUBLAS = "cuBLAS workspace"
_KEEPS_ON_CPU = {"trainer": ("--use_cpu", "--no_cuda"), "accelerate": ("--cpu",)}
"""Switches of a script that would keep its rehearsal off the GPU."""
_TRUE = ("true", "1", "yes", "y", "t")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRehearsals:
    """Rehearsals of a launch that is over.

    Attributes:
        seconds: each is ended after so long; 0: there are none.
        unconfined, no_cache: as of a :class:`RehearsalRequest`.
    """

    seconds: float = MOST_SECONDS
    unconfined: bool = False
    no_cache: bool = False

    def of_oom(self, launch: Launch, report: RunReport, say: Say) -> RehearsedRun | None:
        """Rehearse the command that ran out of a GPU's memory, on the rank that did; None where it was no
        GPU's, the user interrupts it, or there are none."""
        failure = report.first_failure
        on_gpu = launch.command.set_variables.get("ZEROKIT_DEVICE") == "cuda"
        if not on_gpu or failure is None or (failure.oom is not None and failure.oom.memory != "gpu"):
            return None
        if not self.seconds:
            return None
        gpu, why = _gpu(launch)
        if gpu is None:
            return RehearsedRun(stopped=f"not rehearsed: {why}")
        say(f"rehearsing the command that ran out of memory, {self.seconds:g} s at most (Ctrl-C skips it)")
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
        """Predict what a run's fullest rank took, where that was not the plan's job, nor its bare loop.

        Whatever hinders it is told, and nothing is raised: the run is over, and its verdict stands.
        """
        predicted = report.predicted_vs_measured
        assert predicted is not None
        gpu, why = _gpu(launch)
        if gpu is None:
            return PredictedAgain(why_not=f"the command was not rehearsed: {why}")
        command: str | None = _command(launch, gpu, predicted.rank)
        if not self.seconds:
            why_not: str | None = as_options("the command was not rehearsed: ⟨rehearsal_seconds⟩ is 0")
            return PredictedAgain(why_not=why_not, command=command)
        try:
            say(
                f"{report.outcome}; {_why(predicted)}: rehearsing the command to predict it, "
                f"{self.seconds:g} s at most (Ctrl-C skips it)"
            )
            step_time = report.gpu_measured
            done = rehearse(self._request(launch, gpu, predicted.rank, step_time=step_time))
            why_not = _why_unlike(done, report)
            if done.stopped is not None and done.stopped.location:
                command = None  # it would stop at the same line
        except KeyboardInterrupt:
            why_not = "its rehearsal was interrupted"
        except ZerokitError as error:
            why_not = f"the command was not rehearsed: {as_options(str(error))}"
        except Exception as error:  # a fault of the rehearsal must not fail a run that went well
            why_not = f"its rehearsal failed: {type(error).__name__}: {error}"
        if why_not is not None:
            return PredictedAgain(why_not=why_not, command=command)
        chosen = (launch.plan or {}).get("chosen") or {}
        estimate = _estimate(done, launch, on_cpu=not report.on_gpu)
        plan = {**(launch.plan or {}), "chosen": {**chosen, "estimate": estimate}}
        location = (
            f" on a simulated {gpu.title}" if report.on_gpu else "; a simulated GPU stands for host memory"
        )
        fed = f"{done.fed.text}; " if done.fed is not None else ""
        note = f"rehearsed: {fed}rank {predicted.rank}, {done.steps} optimizer steps{location}"
        return PredictedAgain(by="rehearsal", plan=plan, note=note)

    def _request(self, launch: Launch, gpu: Gpu, rank: int, *, step_time: bool = False) -> RehearsalRequest:
        options = launch.options
        return RehearsalRequest(
            target=_off_cpu(launch),
            gpu=gpu,
            gpus=launch.expected_ranks,
            rank=rank,
            launcher=options.launcher,
            plan=PlanUse(
                folder=options.plan,
                no_arguments=options.no_arguments,
                accept_mismatch=options.accept_mismatch,
            ),
            step_time=step_time,
            limit_seconds=self.seconds,
            unconfined=self.unconfined,
            no_cache=self.no_cache,
        )


def _why(predicted: Predicted) -> str:
    """Why the plan's prediction is not enough."""
    if predicted.bare_loop is None:
        return "the run did another job than its plan's"
    return f"{why_bare(predicted.bare_loop)}, but the run's memory differs"


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


def _command(launch: Launch, gpu: Gpu, rank: int) -> str:
    """What the user types to rehearse it."""
    target, options = _off_cpu(launch), launch.options
    words = ["--plan", str(options.plan), "--gpu", gpu.name, "--rank", str(rank)]
    words += ["--gpus", str(launch.expected_ranks)]
    flags = (("--no-arguments", options.no_arguments), ("--accept-mismatch", options.accept_mismatch))
    words += [name for name, is_given in flags if is_given]
    words += [target.script] if target.script is not None else ["-m", str(target.module)]
    return command_text("rehearse", *Secrets(os.environ, target.arguments).argv([*words, *target.arguments]))


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
    engine = next(rank_report.engine for rank_report in report.ranks if rank_report.rank == rank.rank)
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
    from zerokit.catalog import gpus
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
