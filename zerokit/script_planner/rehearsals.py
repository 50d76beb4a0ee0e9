"""One strategy of a script, rehearsed exactly as a launch with its plan would run it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from zerokit.domain.script_profile import RehearsedStrategy, same_memory
from zerokit.domain.strategy import Candidate, MemoryEstimate, RankEstimate, Strategy, TimeEstimate
from zerokit.errors import InputError
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.plan_result import write_plan
from zerokit.rehearsal.by_replay import rehearsed_strategy
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.rehearsal.request import divided_otherwise
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.script import PlanUse
from zerokit.rehearsal.zygote import Zygote
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.search.space import Request
from zerokit.units import format_seconds, format_seconds_range


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedScript:
    """A rehearsal, and what of it the planner takes. ``rehearsed`` is None where it did not go to the end."""

    strategy: Strategy
    done: Rehearsal
    rehearsed: RehearsedStrategy | None

    @property
    def when_kept(self) -> str:
        """When it was made, where that was before."""
        return self.done.when_kept

    @property
    def came_up(self) -> bool:
        """Whether an engine came up: what stops a script before that is seldom its batch size."""
        return any(phase != "load" for phase in self.done.ranks[0].phases)

    @property
    def batch_may_cure(self) -> bool:
        """Whether another batch size may go further: some scripts refuse a batch that does not suit them."""
        stop = self.done.stopped
        reason = "" if stop is None else stop.reason
        is_wrong_code = stop is not None and stop.cause == "script" and _WRONG_CODE.match(reason) is not None
        if is_wrong_code or (stop is not None and stop.cause == "argument"):
            return False
        return self.came_up or _OF_A_BATCH.search(reason) is not None

    @property
    def to_fix(self) -> str | None:
        """The script's own error or a wrong argument that stopped it and ends every run; None: it was
        something else."""
        stop = self.done.stopped
        if stop is None or stop.cause == "rehearsal" or self.batch_may_cure:
            return None
        # the location of a parser tells nothing
        return f"the script's arguments: {_said(stop.reason)}" if stop.cause == "argument" else self.why_not

    @property
    def why_not(self) -> str:
        """Why it is of no use, in a sentence."""
        stop = self.done.stopped
        if stop is None:
            return "no optimizer step was seen"
        return f"{stop.location}: {_said(stop.reason)}" if stop.location else _said(stop.reason)


_WRONG_CODE = re.compile(
    r"(Type|Attribute|Name|UnboundLocal|Import|ModuleNotFound|Syntax|Indentation)Error: "
)
"""Errors that do not depend on the values that the script works on."""
_OF_A_BATCH = re.compile(r"batch|divi[sd]|multiple|generations|AssertionError", re.IGNORECASE)
_ERROR = re.compile(r"[A-Za-z_][\w.]*: ")


def _said(text: str) -> str:
    """The first line of an error, which says what; of any other output the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    return lines[0 if _ERROR.match(lines[0]) else -1][:300]


@contextmanager
def rehearsing(
    target: Target, *, unconfined: bool = False, no_cache: bool = False
) -> Iterator[Callable[..., RehearsedScript]]:
    """In this block, :func:`rehearse_strategy` of one script, which imports its libraries once."""
    with Zygote(target) as zygote:
        yield partial(rehearse_strategy, zygote=zygote, unconfined=unconfined, no_cache=no_cache, whole=False)


def rehearse_strategy(
    target: Target,
    options: ScriptOptions,
    request: Request,
    strategy: Strategy,
    limit_seconds: float,
    *,
    zygote: Zygote,
    unconfined: bool = False,
    no_cache: bool = False,
    layers: int | None = None,
    whole: bool = True,
) -> RehearsedScript:
    """Rehearse the script with a strategy. Of its accumulation two micro-batches are run, and the time of
    the others added: from the second on every one is alike.

    Args:
        zygote: of the script.
        layers: so many of its model's are rehearsed, and the figures are theirs; None: all. whole: all
            are, though a few may tell of them.

    Raises:
        InputError: the script cannot be prepared for the plan, or divides its model by settings of its own.
    """
    # a number that the script decides is run as it says
    short = strategy if request.pins.gradient_accumulation else same_memory(strategy)
    more = strategy.settings.gradient_accumulation - short.settings.gradient_accumulation
    with tempfile.TemporaryDirectory(prefix="zerokit-plan-") as folder:
        _write(Path(folder), request, short)
        done = rehearse(
            RehearsalRequest(
                target=replace(target, arguments=options.arguments(short)),
                gpu=request.cluster.gpu,
                gpus=short.world_size,
                # what the plan adds is among the arguments already, as for a trial of `zerokit tune`
                plan=PlanUse(folder=folder, no_arguments=True, accept_mismatch=True),
                more_micro_steps=more,
                limit_seconds=limit_seconds,
                unconfined=unconfined,
                no_cache=no_cache,
                layers=layers,
                whole=whole,
            ),
            zygote=zygote,
        )
        if short.engine == "fsdp2" and (unlike := divided_otherwise(done, folder)):
            raise InputError(
                f"no plan for FSDP2 reaches the script: {unlike}; `zerokit rehearse` says what it takes alone"
            )
    return RehearsedScript(strategy=strategy, done=done, rehearsed=rehearsed_strategy(done, strategy))


def time_note(between: tuple[float, float], host_factor: float | None) -> str:
    """How sure the chosen plan's step time is."""
    low, high = between
    at = "" if host_factor is None else f" at the host speed kept on this machine, {host_factor:.2f}"
    rehearsed = f"step times are rehearsed{at}"
    if high <= low:
        return rehearsed
    takes = f"{rehearsed}; this one takes {format_seconds_range(low, high)}"
    if format_seconds(low) == format_seconds(high):
        return takes
    if host_factor is not None:
        return f"{takes}, as fast as this host was in its probe's rounds"
    return f"{takes}, as fast as the host is: `zerokit doctor --measure` on the GPU machine tells"


def _write(folder: Path, request: Request, strategy: Strategy) -> None:
    """The plan's files; its prediction is what the rehearsal is to find, and nobody reads it."""
    rank = RankEstimate(first=0, last=0, peak_allocated_bytes=0, peak_phase="init", phases={}, components={})
    none = MemoryEstimate(ranks=(rank,), min_vram_bytes=0, host_bytes_per_node=0)
    time = TimeEstimate(step_seconds=1.0, tokens_per_second_per_gpu=1.0, parts={}, bound_by="compute")
    planned = PlannedStrategy(
        candidate=Candidate(strategy=strategy, memory=none, time=time),
        job=replace(request.job, global_batch=strategy.global_batch),
        cluster=request.cluster,
    )
    write_plan(folder, planned, {}, assumptions=())
