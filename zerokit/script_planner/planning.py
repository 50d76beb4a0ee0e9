"""The search with a script's rehearsals: what comes to the front is rehearsed, until the best three are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.domain.script_profile import ScriptProfile, same_memory
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError, NothingFits
from zerokit.planner.memory_source import Say
from zerokit.planner.one_strategy import one_strategy
from zerokit.planner.plan_result import PlanResult, RehearsalRecord
from zerokit.planner.request import ResolvedRequest, resolve
from zerokit.planner.script_memory import REHEARSED, ScriptMemory
from zerokit.rehearsal.gpu import FakeGpu
from zerokit.rehearsal.result import Rehearsal
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.planned_for import PlannedFor
from zerokit.script.reader import read_script
from zerokit.script_planner.rehearsals import RehearsedScript, rehearse_strategy
from zerokit.script_planner.trained_model import contradiction, options_of
from zerokit.search.explain import strategy_words
from zerokit.search.plan import Plan, make_plan, make_space, time_model
from zerokit.search.request import Request
from zerokit.search.space import Knobs, knobs
from zerokit.timing.constants import Calibration, JobFactors
from zerokit.tuner.tuning import distinct
from zerokit.units import format_count, format_gib, format_seconds

REHEARSED_BEST = 3
"""So many of the best are rehearsed before one is chosen."""
_MOST_REHEARSALS = 12
_LOOKED_THROUGH = 4
_LEAST_LIMIT_SECONDS = 300.0
"""That one rehearsal may take, however little of the budget is left: one of a large model takes minutes."""
_BATCHES = (1, 2, 4, 8)
"""Tried in this order until two of them run: some scripts want a batch of several."""
_STAND_IN = "350m"
"""Whose shape is planned for until the first rehearsal has told the script's model."""


class _CannotRehearse(Exception):
    """Why there is no rehearsal to plan with; in a sentence."""


@dataclass(slots=True, kw_only=True)
class ScriptPlanning:
    """One plan for one script.

    Attributes:
        seconds: after so long only the best plan is still rehearsed.
        profile: the rehearsals so far.
    """

    target: Target
    options: Mapping[str, Any]
    seconds: float
    say: Say
    profile: ScriptProfile = field(init=False)
    records: list[RehearsalRecord] = field(default_factory=list)
    failed: list[Strategy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _script: ScriptOptions = field(init=False)
    _planned: PlannedFor = field(init=False)
    _sizes: Knobs | None = None
    _began: float = field(default_factory=time.monotonic)
    _kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = Path(self.target.name).name if self.target.script else self.target.name
        self.profile = ScriptProfile(name=name, command=self.target.digest)

    def plan(self, top: int) -> PlanResult:
        """Probe the script, search, and rehearse what comes to the front.

        Raises:
            InputError, NothingFits: as for a plan without a script.
        """
        facts = read_script(
            Path(self.target.script) if self.target.script else None, self.target.module, self.target.source
        )
        self._script = ScriptOptions.read(facts, facts.style, self.target.arguments)
        try:
            self._check(facts.style, facts.why)
            read = self._probed()
        except _CannotRehearse as why:
            return self._without(str(why), top)
        return self._result(read, self._searched(read.request, top))

    # ---------------------------------------------------------------- before the search

    def _check(self, style: str, why: str) -> None:
        """Refuse what no rehearsal can be made of.

        Raises:
            _CannotRehearse: says why.
        """
        if style == "none":
            raise _CannotRehearse(f"no plan's configuration reaches it ({why})")
        if self.options.get("inference"):
            raise _CannotRehearse("⟨inference⟩: only training is rehearsed")

    def _resolved(self) -> ResolvedRequest:
        """The request, with what the script decides, as far as is known."""
        asked = {**self.options, **self._kept}
        if not asked.get("model") and not asked.get("params"):
            asked["params"] = _STAND_IN
        read = resolve(asked, say=self.say)
        self._planned = PlannedFor.of(read.request, self._script)
        return replace(read, request=self._planned.request, given={**read.given, **self._planned.decided})

    def _probed(self) -> ResolvedRequest:
        """Rehearse at two batch sizes, without and with checkpointing where the script can do both.

        Raises:
            _CannotRehearse: none went to the end.
            InputError: the model that was named is not the script's.
        """
        named = bool(self.options.get("model") or self.options.get("params"))
        read = self._resolved()
        if read.request.on_cpu:
            raise _CannotRehearse("a plan for CPU ranks needs none: `zerokit launch` runs them here")
        try:
            FakeGpu.of(read.request.cluster.gpu, 1)
        except InputError as error:
            raise _CannotRehearse(error.marked) from None
        batches = self._probe_batches(read.request)
        modes = [read.request.pins.checkpointing] if read.request.pins.checkpointing else ["none", "full"]
        worked: list[int] = []
        first: Rehearsal | None = None
        why = ""
        for batch in batches:
            done = self._rehearse(read.request, self._probe(read.request, batch, modes[0]))
            if done.found is None:
                why = why or done.why_not
                if worked:
                    break
                continue
            worked.append(batch)
            if first is None:
                first = done.done
                read = self._with_model(first, read, named)
            if len(worked) == 2:
                break
        if first is None:
            raise _CannotRehearse(why)
        # what one more sequence takes beside the replay is the same with checkpointing
        for mode in modes[1:] if self._time_is_left else []:
            self._rehearse(read.request, self._probe(read.request, worked[-1], mode))
        return read

    def _probe(self, request: Request, batch: int, checkpointing: str) -> Strategy:
        """A strategy to learn of the script: its bytes beside the model's hardly depend on the stage. All
        probes have the same buckets, those that the search tries first."""
        pins = request.pins
        stage = pins.zero_stage if pins.zero_stage is not None else 2 if request.cluster.gpus > 1 else 0
        asked = replace(
            request,
            job=replace(request.job, global_batch=None),
            pins=replace(
                pins,
                zero_stage=stage,
                micro_batch=batch,
                gradient_accumulation=pins.gradient_accumulation or 1,
                checkpointing=checkpointing,
            ),
        )
        if self._sizes is None:
            self._sizes = knobs(stage, pins, make_space(asked)[0].timing.trainable)[0]
        sized = replace(
            asked.pins,
            reduce_bucket_size=self._sizes.reduce_bucket_size,
            prefetch_bucket_size=self._sizes.prefetch_bucket_size,
            persistence_threshold=self._sizes.persistence_threshold,
            sub_group_size=self._sizes.sub_group_size,
        )
        return one_strategy(replace(asked, pins=sized))[0]

    def _probe_batches(self, request: Request) -> tuple[int, ...]:
        micro = request.pins.micro_batch
        return (micro,) if micro is not None else _BATCHES

    def _with_model(self, done: Rehearsal, read: ResolvedRequest, named: bool) -> ResolvedRequest:
        found, notes = options_of(done, self.options)
        if found:
            self._kept |= found
            self.notes += notes
            read = self._resolved()
        if named:
            why = contradiction(done, read.request.shape.parameters, read.request.job.method)
            if why is not None:
                raise InputError(
                    f"⟨model⟩, ⟨params⟩: {why}; leave them out: the rehearsal determines the script's model"
                )
        return read

    # ---------------------------------------------------------------- rehearsals

    @property
    def _time_is_left(self) -> bool:
        spent = time.monotonic() - self._began
        return spent < self.seconds and len(self.records) < _MOST_REHEARSALS

    def _rehearse(self, request: Request, strategy: Strategy) -> RehearsedScript:
        began = time.monotonic()
        left = max(0.0, self.seconds - (began - self._began))
        self.say(
            f"rehearsal {len(self.records) + 1} of at most {_MOST_REHEARSALS} "
            f"({format_seconds(left)} left of ⟨rehearsal_seconds⟩): {strategy_words(strategy)}"
        )
        limit = max(left, _LEAST_LIMIT_SECONDS)
        done = rehearse_strategy(self.target, self._script, request, strategy, limit)
        took = time.monotonic() - began
        if done.found is None:
            self.failed.append(strategy)
            self.say(f"  {self.profile.name}: {done.why_not}")
        else:
            self.profile = self.profile.with_rehearsed(done.found)
            step = f", {format_seconds(done.found.step_seconds)} a step" if done.found.step_seconds else ""
            self.say(
                f"  peak {format_gib(done.found.peak_allocated_bytes)}, "
                f"{format_gib(done.found.min_vram_bytes)} required{step}; took {format_seconds(took)}"
            )
        self.records.append(
            RehearsalRecord(
                strategy=strategy,
                seconds=took,
                peak_allocated_bytes=done.found.peak_allocated_bytes if done.found else None,
                min_vram_bytes=done.found.min_vram_bytes if done.found else None,
                step_seconds=done.found.step_seconds if done.found else None,
                stopped=None if done.found else done.why_not,
            )
        )
        return done

    # ---------------------------------------------------------------- the search

    def _searched(self, request: Request, top: int) -> Plan:
        """Search and rehearse, until the best three are; once the time is up only the best.

        Raises:
            NothingFits: with what the rehearsals showed, nothing does.
        """
        while True:
            try:
                made = make_plan(self._informed(request), top=max(top, REHEARSED_BEST * _LOOKED_THROUGH))
            except NothingFits as error:
                raise NothingFits(
                    f"{error.marked}\n{len(self.records)} rehearsals of {self.profile.name} led to this"
                ) from None
            failed = {same_memory(each) for each in self.failed}
            usable = [
                each for each in (made.chosen, *made.alternatives) if same_memory(each.strategy) not in failed
            ]
            if not usable:
                raise InputError(
                    f"{self.profile.name} failed with every plan that would fit: "
                    f"{next((each.stopped for each in self.records if each.stopped), '')}"
                )
            best = distinct(usable, REHEARSED_BEST) if self._time_is_left else usable[:1]
            waiting = list(self._not_rehearsed(best))
            if not waiting or len(self.records) >= _MOST_REHEARSALS:
                return self._chosen(made, usable, request, top)
            self._rehearse(request, waiting[0].strategy)

    def _not_rehearsed(self, best: list[Candidate]) -> Iterator[Candidate]:
        for each in best:
            if self.profile.of(each.strategy) is None:
                yield each

    def _informed(self, request: Request) -> Request:
        """The request with what the rehearsals say of memory and time."""
        memory = ScriptMemory(request.memory, self.profile)
        exact = ScriptMemory(request.exact_memory or request.memory, self.profile)
        return replace(
            request,
            all_gpus=True,  # every number of GPUs would need rehearsals of its own
            memory=memory,
            exact_memory=exact,
            least_vram=None if request.least_vram is None else memory.least(request.least_vram),
            calibration=self._calibration(request),
        )

    def _calibration(self, request: Request) -> Calibration | None:
        """Rehearsed over predicted step times, as factors; what was measured here goes before them."""
        ratios: dict[tuple[object, ...], float] = {}
        for each in self.profile.rehearsed:
            if each.step_seconds is None:
                return request.calibration
            job = replace(make_space(request)[0].job, global_batch=each.strategy.global_batch)
            predicted = time_model(request, job).estimate(each.strategy).step_seconds
            ratios[each.strategy.family] = each.step_seconds / predicted
        if not ratios:
            return request.calibration
        others = sorted(ratios.values())[len(ratios) // 2]
        calibration = request.calibration or Calibration()
        return replace(calibration, rehearsed=JobFactors(tried=ratios, others=others))

    def _chosen(self, made: Plan, usable: list[Candidate], request: Request, top: int) -> Plan:
        chosen = usable[0]
        if chosen.memory.basis != REHEARSED:
            self.notes.append(
                f"this plan itself was not rehearsed: after {len(self.records)} rehearsals others came first"
            )
        known = self.profile.of(chosen.strategy)
        if known is not None and known.step_seconds_range is not None:
            low, high = known.step_seconds_range
            self.notes.append(
                f"step times are rehearsed; this one takes {format_seconds(low)} to {format_seconds(high)}, "
                "as fast as the host is: `zerokit doctor --measure` on the GPU machine tells"
                if high > low
                else "step times are rehearsed, at this host's speed"
            )
        assumptions = (*made.assumptions, *self.notes)
        alternatives = tuple(each for each in usable if each is not chosen)[: max(0, top - 1)]
        return replace(made, chosen=chosen, alternatives=alternatives, assumptions=assumptions)

    # ---------------------------------------------------------------- the result

    def _result(self, read: ResolvedRequest, made: Plan) -> PlanResult:
        request = read.request
        return PlanResult(
            request=read.given,
            plan=self._planned.told(made),
            job=make_space(request)[0].job,
            cluster=made.cluster,
            model_name=self._model_name(read),
            parameters=request.shape.parameters,
            timed=request.timed,
            on_cpu=request.on_cpu,
            script=self.profile,
            rehearsals=tuple(self.records),
        )

    def _model_name(self, read: ResolvedRequest) -> str:
        """The model's; of one that only the script names, the script's with the model's size."""
        if "model" not in self._kept or "/" not in read.model_name:
            return read.model_name
        shape = read.request.shape
        return f"{self.profile.name} ({shape.family}, {format_count(shape.parameters)} parameters)"

    def _without(self, why: str, top: int) -> PlanResult:
        """Plan as if there were no script, and say so.

        Raises:
            InputError: no model was named either.
        """
        said = f"{self.profile.name} could not be rehearsed: {why}"
        self.say(said)
        if not self.options.get("model") and not self.options.get("params"):
            raise InputError(f"{said}; name the model with ⟨model⟩ or ⟨params⟩ to plan without it")
        read = self._resolved()
        made = make_plan(read.request, top=top)
        note = f"{said}; memory and time are those of a plain training loop of the model"
        return self._result(read, replace(made, assumptions=(*made.assumptions, note)))
