"""The search with a script's rehearsals: what comes to the front is rehearsed, until the best few are.

How a strategy is rehearsed is an argument: the planner stands below the rehearsal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile, same_memory
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError, NothingFits
from zerokit.planner.few_layers import FEW
from zerokit.planner.memory_source import Say, ScriptMemory
from zerokit.planner.plan_result import RehearsalRecord
from zerokit.search.explain import strategy_words
from zerokit.search.plan import Plan, make_plan, make_space, time_model
from zerokit.search.sizing import distinct
from zerokit.search.space import Request
from zerokit.timing.constants import Calibration, JobFactors
from zerokit.units import counted, format_gib, format_seconds
from zerokit.values import replace

MOST_REHEARSALS = 12
LOOKED_THROUGH = 4
"""So many ranked strategies for each that is wanted."""
FOR_A_BATCH = "to learn what the script takes"
FOR_EACH_SEQUENCE = "to learn what another sequence takes"
FOR_CHECKPOINTING = "to learn what checkpointing changes"
OF_MORE_LAYERS = "with more layers"
OF_ALL_LAYERS = "with all layers"
_CLEAR_OF_THE_CARD = 0.9
"""Up to this share of the card's memory a plan stands that was rehearsed with few layers: the smallest card
depends on how blocks lie among each other, which is up to 10 % otherwise with all of them (ZeRO-1 with
accumulation; under ZeRO-3 1 %)."""
_ALIKE = 0.005
"""By how much, as a share, the peak of all layers may differ from what a few of them told."""
_OF_PROBES = (FOR_A_BATCH, FOR_EACH_SEQUENCE, FOR_CHECKPOINTING)
"""What a rehearsal is for whose figures are not those of a plan."""
_FRONT_RUNNER = "one of the fastest that should fit"
_LEAST_LIMIT_SECONDS = 300.0
"""That one rehearsal may take, however little of the budget is left: one of a large model takes minutes."""


def _time_left(seconds: float) -> str:
    """How long rehearsals may still begin, and how long this one may take where that is more."""
    if seconds < 1:
        return "⟨rehearsal_seconds⟩ are over, and a plan needs it"
    left = f"{format_seconds(seconds)} left to begin others"
    if seconds < _LEAST_LIMIT_SECONDS:
        left += f"; this one may take {format_seconds(_LEAST_LIMIT_SECONDS)}"
    return left


class RehearsalOutcome(Protocol):
    """What a rehearsal came to."""

    @property
    def rehearsed(self) -> RehearsedStrategy | None:
        """What the planner takes of it; None where it did not go to the end."""

    @property
    def when_kept(self) -> str:
        """When it was made, where it was kept from then; empty: it is new."""

    @property
    def why_not(self) -> str:
        """Why there is nothing to take, in a sentence."""


def _figures(rehearsed: RehearsedStrategy | None) -> dict[str, Any]:
    """What a record has of a rehearsal; None where it did not go to the end."""
    names = ("peak_allocated_bytes", "min_vram_bytes", "step_seconds", "layers")
    return {name: getattr(rehearsed, name, None) for name in names}


Outcome = TypeVar("Outcome", bound=RehearsalOutcome)
Run = Callable[[Request, Strategy, float], Outcome]


@dataclass(slots=True, kw_only=True)
class RehearsedSearch(Generic[Outcome]):
    """One script's rehearsals, and the search with what they show.

    Attributes:
        run: rehearses a strategy of a request, within so many seconds.
        judge: the same with all layers of the model, where ``run`` may leave some out; None: it never does.
        deepen: with more of them than ``run``, which tells what a layer takes under this very strategy.
        best: so many of the best are to be rehearsed.
        seconds: after so long the script is rehearsed only until one plan is that fits.
        takes_unrehearsed: whether strategies that may be faster than the rehearsed ones are kept when the
            time is over: each will be run.
        profile: the rehearsals that went to the end. ``failed``: strategies whose rehearsal did not.
        records: all rehearsals, in their order.
        passed_over: which strategies may be faster than the choice and were not rehearsed any more, in a
            sentence; empty: none.
    """

    run: Run[Outcome]
    best: int
    seconds: float
    say: Say
    profile: ScriptProfile
    takes_unrehearsed: bool = False
    judge: Run[Outcome] | None = None
    deepen: Run[Outcome] | None = None
    records: list[RehearsalRecord] = field(default_factory=list)
    failed: list[Strategy] = field(default_factory=list)
    passed_over: str = ""
    _unjudged: list[RehearsedStrategy] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    @property
    def time_is_left(self) -> bool:
        """Whether more than one plan that fits may be rehearsed."""
        spent = time.monotonic() - self._began
        return spent < self.seconds and len(self.records) < MOST_REHEARSALS

    @property
    def _so_far(self) -> str:
        return counted(len(self.records), "rehearsal")

    @property
    def last_records(self) -> tuple[RehearsalRecord, ...]:
        """The last one of each strategy that went to the end, or that none did."""
        last: dict[Strategy, RehearsalRecord] = {}
        for record in self.records:
            if record.stopped is None or record.strategy not in last:
                last[record.strategy] = record
        return tuple(last.values())

    def rehearse(
        self, request: Request, strategy: Strategy, purpose: str = "", run: Run[Outcome] | None = None
    ) -> Outcome:
        """Rehearse one strategy, and keep what it shows. ``purpose``: what for. ``run``: in the place of the
        search's own."""
        began = time.monotonic()
        seconds_left = max(0.0, self.seconds - (began - self._began))
        title = ", ".join(filter(None, (f"rehearsal {len(self.records) + 1}", purpose)))
        self.say(f"{title}: {strategy_words(strategy)} ({_time_left(seconds_left)})")
        done = (run or self.run)(request, strategy, max(seconds_left, _LEAST_LIMIT_SECONDS))
        took, rehearsed = time.monotonic() - began, done.rehearsed
        how = f"kept {done.when_kept}" if done.when_kept else f"took {format_seconds(took)}"
        if rehearsed is None:
            self.failed.append(strategy)
            self.say(f"  {self.profile.name}: {done.why_not}")
        else:
            self.profile = self.profile.with_rehearsed(rehearsed)
            few = f"from {rehearsed.depth}, " if rehearsed.depth else ""
            step = f", {format_seconds(rehearsed.step_seconds)} a step" if rehearsed.step_seconds else ""
            self.say(
                f"  {few}peak {format_gib(rehearsed.peak_allocated_bytes)}, "
                f"{format_gib(rehearsed.min_vram_bytes)} required{step}; {how}"
            )
        self.records.append(
            RehearsalRecord(
                strategy=strategy,
                seconds=took,
                stopped=None if rehearsed else done.why_not,
                probe=purpose in _OF_PROBES,
                **_figures(rehearsed),
            )
        )
        return done

    def restate(self, rehearsed: RehearsedStrategy) -> None:
        """Put what a few layers tell of all in the place of what the last strategy was rehearsed with."""
        self.profile = self.profile.with_rehearsed(rehearsed)
        self.records[-1] = replace(self.records[-1], **_figures(rehearsed))
        self.say(f"  from {rehearsed.depth}: peak {format_gib(rehearsed.peak_allocated_bytes)}")

    def forget_rehearsals(self, why: str, *, but_micro_batch: int | None = None) -> None:
        """Take nothing of those so far but of one micro-batch: in the others the script did something else,
        which ``why`` says."""

        def is_kept(one: RehearsalRecord | RehearsedStrategy) -> bool:
            return one.strategy.settings.micro_batch == but_micro_batch

        self.profile = replace(self.profile, rehearsed=tuple(filter(is_kept, self.profile.rehearsed)))
        unknown = dict.fromkeys(("peak_allocated_bytes", "min_vram_bytes", "step_seconds"))
        self.records = [
            one if is_kept(one) else replace(one, **unknown, stopped=one.stopped or why)
            for one in self.records
        ]

    def search(self, request: Request, top: int) -> Plan:
        """Search and rehearse, until the best are; once the time is over, until one that fits is.

        Returns:
            The last search, without strategies whose rehearsal failed.

        Raises:
            NothingFits: with what the rehearsals showed, nothing does.
            InputError: the script failed with every plan that would fit.
        """
        while True:
            in_time = self.time_is_left
            wanted = LOOKED_THROUGH * (self.best if in_time else MOST_REHEARSALS)
            keep = partial(self._kept, in_time=in_time)
            try:
                plan = make_plan(self.informed(request), top=max(top, wanted), keep=keep)
            except NothingFits as error:
                raise NothingFits(
                    f"{error.marked}\n{self._so_far} of {self.profile.name} led to this"
                ) from None
            usable = [plan.chosen, *plan.alternatives]
            best = distinct(usable, self.best) if in_time else usable[:1]
            waiting = [one for one in best if self.profile.of(one.strategy) is None]
            if not waiting or len(self.records) >= MOST_REHEARSALS:
                if not self._is_judged(request, plan.chosen.strategy):
                    continue
                return plan
            self.rehearse(request, waiting[0].strategy, _FRONT_RUNNER if in_time else "")

    def _is_judged(self, request: Request, strategy: Strategy) -> bool:
        """Whether what is said of a strategy can stand. One that was rehearsed with few layers is rehearsed
        with more of them, since a layer's share of the step is another under each strategy, and where it
        leaves little of the card with all; where these are not as the few said, none of those counts any
        more."""
        few = self.profile.of(strategy)
        if few is None or few.layers is None or self.judge is None or few in self._unjudged:
            return True
        if self.deepen is not None and few.layers[0] <= FEW:
            purpose, run = OF_MORE_LAYERS, self.deepen
        elif few.min_vram_bytes > _CLEAR_OF_THE_CARD * request.cluster.gpu.driver_vram_bytes:
            purpose, run = OF_ALL_LAYERS, self.judge
        else:
            return True
        more = self.rehearse(request, few.strategy, purpose, run).rehearsed
        if more is None:  # it took too long, or stops: either way it is said
            self._unjudged.append(few)
        elif abs(few.peak_allocated_bytes / more.peak_allocated_bytes - 1) > _ALIKE:
            self.say("  layers are not alike in this script: rehearsals of few of them are left out")
            self.run = self.judge
            kept = tuple(one for one in self.profile.rehearsed if one.layers is None)
            self.profile = replace(self.profile, rehearsed=kept)
        return False

    def why_few(self, strategy: Strategy) -> str:
        """How a strategy was rehearsed that was not with all layers, in a sentence; empty: it was."""
        few = self.profile.of(strategy)
        if few is None or few.layers is None:
            return ""
        text = f"rehearsed with {few.depth}; what the others take is replayed"
        if few in self._unjudged:
            text += (
                f" (with more of them: {next(one.stopped for one in reversed(self.records) if one.stopped)})"
            )
        return text

    def _kept(self, ranked: Sequence[Candidate], *, in_time: bool) -> Sequence[Candidate]:
        """Those whose rehearsal did not fail; once the time is over and a rehearsed plan fits, from the
        fastest rehearsed one on. Raises InputError: all failed."""
        told = {same_memory(few.strategy) for few in self._unjudged}
        failed = {same_memory(strategy) for strategy in self.failed} - told
        usable = [candidate for candidate in ranked if same_memory(candidate.strategy) not in failed]
        if not usable:
            raise InputError(
                f"{self.profile.name} failed with every plan that would fit: "
                f"{next((record.stopped for record in self.records if record.stopped), '')}"
            )
        plans = {same_memory(record.strategy) for record in self.records if not record.probe}
        is_settled = any(
            same_memory(one.strategy) in plans and self.profile.of(one.strategy) is not None for one in usable
        )
        if in_time or self.takes_unrehearsed or not is_settled:
            return usable
        first = next(at for at, one in enumerate(usable) if self.profile.of(one.strategy) is not None)
        self.passed_over = self._passed_over(usable[:first]) if first else ""
        return usable[first:]

    def _passed_over(self, faster: Sequence[Candidate]) -> str:
        others = f" and {counted(len(faster) - 1, 'other')}" if len(faster) > 1 else ""
        is_time = len(self.records) < MOST_REHEARSALS
        why = "the time of ⟨rehearsal_seconds⟩ was over" if is_time else f"{self._so_far} are the most"
        return f"may be faster, but not rehearsed: {strategy_words(faster[0].strategy)}{others}; {why}"

    def informed(self, request: Request) -> Request:
        """The request with what the rehearsals say of memory and time."""
        return replace(
            request,
            all_gpus=True,  # every number of GPUs would need rehearsals of its own
            memory=ScriptMemory(request.memory, self.profile),
            calibration=self._calibration(request),
        )

    def _calibration(self, request: Request) -> Calibration | None:
        """Rehearsed over predicted step times, as factors; what was measured here goes before them."""
        ratios: dict[tuple[object, ...], float] = {}
        ranges: dict[tuple[object, ...], tuple[float, float]] = {}
        for rehearsed in self.profile.rehearsed:
            if rehearsed.step_seconds is None:
                return request.calibration
            job = replace(make_space(request)[0].job, global_batch=rehearsed.strategy.global_batch)
            predicted = time_model(request, job).estimate(rehearsed.strategy).step_seconds
            ratios[rehearsed.strategy.family] = rehearsed.step_seconds / predicted
            if rehearsed.step_seconds_range is not None:
                low, high = rehearsed.step_seconds_range
                ranges[rehearsed.strategy.family] = (
                    low / rehearsed.step_seconds,
                    high / rehearsed.step_seconds,
                )
        if not ratios:
            return request.calibration
        median = sorted(ratios.values())[len(ratios) // 2]
        calibration = request.calibration or Calibration()
        factors = JobFactors(by_family=ratios, otherwise=median, ranges=ranges)
        return replace(calibration, rehearsed=factors)
