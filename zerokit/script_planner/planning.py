"""A plan for a script: what its first rehearsals tell of it, and the search with the best three rehearsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.domain.script_profile import ScriptProfile
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError
from zerokit.planner.effects import unread
from zerokit.planner.memory_source import Say
from zerokit.planner.named_models import unlike_planned
from zerokit.planner.one_strategy import one_strategy
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.rehearsed_search import (
    FOR_A_BATCH,
    FOR_CHECKPOINTING,
    FOR_EACH_SEQUENCE,
    RehearsedSearch,
)
from zerokit.planner.request import ResolvedRequest, resolve
from zerokit.planner.script_memory import REHEARSED
from zerokit.rehearsal.gpu import FakeGpu
from zerokit.rehearsal.result import Rehearsal
from zerokit.script import misplaced_options
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.named_model import named_model
from zerokit.script.planned_for import PlannedFor
from zerokit.script.planned_values import PlannedValues
from zerokit.script.reader import ScriptFacts, read_script
from zerokit.script.scripts_optimizer import with_optimizer_of
from zerokit.script.training_switch import why_no_training
from zerokit.script_planner.rehearsals import RehearsedScript, rehearse_strategy
from zerokit.script_planner.trained_model import contradiction, options_of
from zerokit.search.plan import Plan, make_plan, make_space
from zerokit.search.request import Request
from zerokit.search.space import Knobs, knobs
from zerokit.units import counted, format_count, format_seconds

REHEARSED_BEST = 3
"""So many of the best are rehearsed before one is chosen."""
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
        search: the rehearsals so far, and what is found with them.
    """

    target: Target
    options: Mapping[str, Any]
    seconds: float
    say: Say
    search: RehearsedSearch[RehearsedScript] = field(init=False)
    notes: list[str] = field(default_factory=list)
    _script: ScriptOptions = field(init=False)
    _planned: PlannedFor = field(init=False)
    _sizes: Knobs | None = None
    _kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = Path(self.target.name).name if self.target.script else self.target.name
        self.search = RehearsedSearch(
            run=self._run,
            best=REHEARSED_BEST,
            seconds=self.seconds,
            say=self.say,
            profile=ScriptProfile(name=name, command=self.target.digest),
        )

    def _run(self, request: Request, strategy: Strategy, limit_seconds: float) -> RehearsedScript:
        return rehearse_strategy(self.target, self._script, request, strategy, limit_seconds)

    def plan(self, top: int) -> PlanResult:
        """Probe the script, search, and rehearse what comes to the front.

        Raises:
            InputError, NothingFits: as for a plan without a script.
        """
        facts = read_script(
            Path(self.target.script) if self.target.script else None, self.target.module, self.target.source
        )
        for warning in misplaced_options.warnings(facts, self.target.name, self.target.arguments, "plan"):
            self.say(warning)
        self._script = ScriptOptions.read(facts, facts.style, self.target.arguments)
        self._say_another_model()
        try:
            self._check(facts)
            read = self._probed()
        except _CannotRehearse as why:
            return self._plan_unrehearsed(str(why), top)
        return self._result(read, self._searched(read.request, top))

    # ---------------------------------------------------------------- before the search

    def _say_another_model(self) -> None:
        """Where the arguments of the script name another model than those of the plan."""
        named = named_model(self._script)
        if named is not None and (self.options.get("model") or self.options.get("params")):
            unlike = unlike_planned(*named, self.options, None)
            if unlike is not None:
                self.say(f"warning: {unlike}")
                self.notes.append(unlike)

    def _check(self, facts: ScriptFacts) -> None:
        """Refuse what no rehearsal can be made of.

        Raises:
            _CannotRehearse: says why.
        """
        if facts.style == "none":
            raise _CannotRehearse(f"no plan's configuration reaches it ({facts.why})")
        untrained = why_no_training(facts, self.target.arguments)
        if untrained is not None:
            raise _CannotRehearse(f"no training step would be seen: {untrained}")
        if self.options.get("inference"):
            raise _CannotRehearse("⟨inference⟩: only training is rehearsed")

    def _resolved(self) -> ResolvedRequest:
        """The request, with what the script decides, as far as is known."""
        options = {**self.options, **self._kept}
        if not options.get("model") and not options.get("params"):
            options["params"] = _STAND_IN
        read = resolve(with_optimizer_of(self._script, options), say=self.say)
        self._planned = PlannedFor.of(read.request, self._script, self._kept)
        return replace(read, request=self._planned.request, options={**read.options, **self._planned.decided})

    def _probed(self) -> ResolvedRequest:
        """Rehearse at two batch sizes, without and with checkpointing where the script can do both.

        Raises:
            _CannotRehearse: none went to the end.
            InputError: the model that was named is not the script's.
        """
        named = bool(self.options.get("model") or self.options.get("params"))
        read = self._resolved()
        if read.request.on_cpu:
            raise _CannotRehearse(
                "a rehearsal is on a GPU, and these are CPU ranks; without a plan "
                f"`zerokit launch ⟨device⟩ cpu {self.search.profile.name}` runs it here"
            )
        try:
            FakeGpu.of(read.request.cluster.gpu, 1)
        except InputError as error:
            raise _CannotRehearse(error.marked) from None
        micro = read.request.pins.micro_batch
        batches = (micro,) if micro is not None else _BATCHES
        modes = [read.request.pins.checkpointing] if read.request.pins.checkpointing else ["none", "full"]
        fed: dict[int, tuple[int | None, int | None]] = {}
        first: Rehearsal | None = None
        why = ""
        for batch in batches:
            purpose = FOR_EACH_SEQUENCE if fed else FOR_A_BATCH
            done = self.search.rehearse(read.request, self._probe(read.request, batch, modes[0]), purpose)
            if done.rehearsed is None:
                repeated = why == done.why_not and not done.came_up
                why = why or done.why_not
                if fed or repeated or not done.batch_may_cure:
                    break
                continue
            engine = done.done.engine or {}
            if first is None and (own := self._trainers_own(engine, done.strategy)):
                self.search.forget_rehearsals(f"the script trained with {own}")
                return self._probed()
            fed[batch] = engine.get("batch_rows"), engine.get("batch_columns")
            if first is None:
                first = done.done
                self._learn_pairs(engine)
                read = self._with_model(first, read, named)
            if len(fed) == 2:
                break
        if first is None:
            raise _CannotRehearse(why)
        read = self._held_to_batch(fed, read)
        last = read.request.pins.micro_batch or max(fed)
        if last not in fed and self.search.time_is_left:
            self.search.rehearse(read.request, self._probe(read.request, last, modes[0]), FOR_EACH_SEQUENCE)
        # what one more sequence takes beside the replay is the same with checkpointing
        for mode in modes[1:] if self.search.time_is_left else []:
            self.search.rehearse(read.request, self._probe(read.request, last, mode), FOR_CHECKPOINTING)
        return read

    def _trainers_own(self, engine: Mapping[str, Any], planned: Strategy) -> str:
        """Arguments of a Trainer that turned out to be others than planned, as computed ones can: they are
        kept. Empty: there are none.

        Raises:
            InputError: another value was asked for.
        """
        if self._script.style != "trainer":
            return ""
        settings = planned.settings
        expected: dict[str, object] = {
            "micro_batch": settings.micro_batch,
            "gradient_accumulation": settings.gradient_accumulation,
            "precision": settings.precision,
        }
        words = []
        for name, value in expected.items():
            own, asked = engine.get(name), self.options.get(name)
            if own in (None, value):
                continue
            if name in self._kept:  # it follows what it is told, and is never that
                raise _CannotRehearse(f"told to train with {name.replace('_', '-')} {value}, it takes {own}")
            if asked not in (None, "auto"):
                raise InputError(
                    f"⟨{name}⟩ {asked}: the script trains with {own}; leave ⟨{name}⟩ out, or change it"
                )
            self._kept[name] = str(own)
            self.notes.append(f"⟨{name}⟩ {own}: the script trains with it, whatever the plan had")
            words.append(f"{name.replace('_', '-')} {own}")
        if words:
            self.say(f"{self.search.profile.name} trains with {', '.join(words)}: planned for that")
        return ", ".join(words)

    def _learn_pairs(self, engine: Mapping[str, Any]) -> None:
        """Whether a row of the data is several sequences to the model, as a pair of DPO is."""
        loaded, fed = engine.get("loader_rows"), engine.get("batch_rows")
        if not loaded or not fed or fed == loaded or fed % loaded:
            return
        profile = replace(self.search.profile, sequences_per_row=fed // loaded)
        self.search.profile = profile
        self.notes.append(
            f"a row of the data is {fed // loaded} sequences to the script's model: batch sizes count "
            f"{profile.rows(2).partition(' ')[2]}, and tokens per second one sequence of each"
        )

    def _probe(self, request: Request, batch: int, checkpointing: str) -> Strategy:
        """A strategy to learn of the script: its bytes beside the model's hardly depend on the stage. All
        probes have the same buckets, those that the search tries first."""
        pins = request.pins
        stage = pins.zero_stage if pins.zero_stage is not None else 2 if request.cluster.gpus > 1 else 0
        probe_request = replace(
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
            self._sizes = knobs(stage, pins, make_space(probe_request)[0].timing.trainable)[0]
        sized = replace(
            probe_request.pins,
            reduce_bucket_size=self._sizes.reduce_bucket_size,
            prefetch_bucket_size=self._sizes.prefetch_bucket_size,
            persistence_threshold=self._sizes.persistence_threshold,
            sub_group_size=self._sizes.sub_group_size,
        )
        return one_strategy(replace(probe_request, pins=sized))[0]

    def _held_to_batch(
        self, fed: Mapping[int, tuple[int | None, int | None]], read: ResolvedRequest
    ) -> ResolvedRequest:
        """Plan for the batch that the script feeds, where that is not the one it was told.

        Args:
            fed: rows and columns of what reached the engine, by the micro-batch of the plan.
        """
        rows = next((rows for rows, _ in fed.values()), None)
        if self._script.style == "trainer" or rows is None:  # whose arguments are its batch
            return read
        if len(fed) == 1:
            (micro,) = fed
            if rows not in (1, micro):  # one row may hold several sequences, end to end
                self.notes.append(
                    f"the script fed its engine {rows} rows at a time, not the {micro} of the micro-batch: "
                    f"memory and time of a step are for {rows}, tokens per second for {micro}"
                )
            return read
        if len(set(fed.values())) > 1:
            return read
        self._kept["micro_batch"] = str(rows)
        self.notes.append(
            f"micro-batch {rows}: the script fed its engine so many rows, whatever the plan had"
        )
        self.say(
            f"{self.search.profile.name} feeds its engine {counted(rows, 'row')} at a time: micro-batch "
            f"{rows}"
        )
        self.search.forget_rehearsals(f"the script ran with micro-batch {rows}", but_micro_batch=rows)
        return self._resolved()

    def _with_model(self, done: Rehearsal, read: ResolvedRequest, named: bool) -> ResolvedRequest:
        model_options, notes = options_of(done, self.options)
        if model_options:
            self._kept |= model_options
            self.notes += notes
            read = self._resolved()
        if named:
            why = contradiction(done, read.request.shape.parameters, read.request.job.method)
            if why is not None:
                raise InputError(
                    f"⟨model⟩, ⟨params⟩: {why}; leave them out: the rehearsal determines the script's model"
                )
        return read

    # ---------------------------------------------------------------- the search

    def _searched(self, request: Request, top: int) -> Plan:
        plan, usable = self.search.search(request, top)
        return self._chosen(plan, usable, request, top)

    def _chosen(self, plan: Plan, usable: list[Candidate], request: Request, top: int) -> Plan:
        chosen = usable[0]
        if chosen.memory.basis != REHEARSED:
            self.notes.append(
                "this plan itself was not rehearsed: after "
                f"{counted(len(self.search.records), 'rehearsal')} others came first"
            )
        rehearsed = self.search.profile.of(chosen.strategy)
        if rehearsed is not None and rehearsed.step_seconds_range is not None:
            probed = request.calibration is not None and request.calibration.host_factor is not None
            self.notes.append(_time_note(rehearsed.step_seconds_range, probed=probed))
        assumptions = (*plan.assumptions, *self.notes)
        alternatives = tuple(candidate for candidate in usable if candidate is not chosen)[: max(0, top - 1)]
        return replace(plan, chosen=chosen, alternatives=alternatives, assumptions=assumptions)

    # ---------------------------------------------------------------- the result

    def _result(self, read: ResolvedRequest, plan: Plan) -> PlanResult:
        request = read.request
        explained = self._planned.with_own_reasons(plan)
        notes = unread(self.options, [plan.chosen.strategy])
        return PlanResult(
            request=read.options,
            plan=replace(explained, assumptions=(*explained.assumptions, *notes)),
            job=make_space(request)[0].job,
            cluster=plan.cluster,
            model_name=self._model_name(read),
            parameters=request.shape.parameters,
            timed=request.timed,
            on_cpu=request.on_cpu,
            script=self.search.profile,
            rehearsals=tuple(self.search.records),
            added_arguments=self._script.additions(PlannedValues.of(plan.chosen.strategy)),
        )

    def _model_name(self, read: ResolvedRequest) -> str:
        """The model's; of one that only the script names, the script's with the model's size."""
        if "model" not in self._kept or "/" not in read.model_name:
            return read.model_name
        shape = read.request.shape
        return f"{self.search.profile.name} ({shape.family}, {format_count(shape.parameters)} parameters)"

    def _plan_unrehearsed(self, why: str, top: int) -> PlanResult:
        """Plan as if there were no script, and say so.

        Raises:
            InputError: no model was named either.
        """
        failure = f"{self.search.profile.name} could not be rehearsed: {why}"
        if not self.options.get("model") and not self.options.get("params"):
            download = ""
            if "ConnectionError" in why or "OfflineMode" in why:
                download = ". A rehearsal has no network: download first what the script loads from the Hub"
            raise InputError(
                f"{failure}; mend what stops it, or plan without the script: name the model with ⟨model⟩ "
                f"(or a config.json) or ⟨params⟩{download}"
            )
        self.say(failure)
        read = self._resolved()
        plan = make_plan(read.request, top=top)
        note = f"{failure}; memory and time are those of a plain training loop of the model"
        return self._result(read, replace(plan, assumptions=(*plan.assumptions, *self.notes, note)))


def _time_note(between: tuple[float, float], *, probed: bool) -> str:
    """How sure the chosen plan's step time is."""
    low, high = between
    if high <= low:
        return "step times are rehearsed, at this host's speed"
    words = (
        f"step times are rehearsed; this one takes {format_seconds(low)} to {format_seconds(high)}, as fast"
    )
    if probed:
        return f"{words} as this host was in its probe's rounds"
    return f"{words} as the host is: `zerokit doctor --measure` on the GPU machine tells"
