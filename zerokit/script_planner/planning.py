"""A plan for a script: what its first rehearsals tell of it, and the search with the best three rehearsed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile
from zerokit.domain.settings import PlannedValues
from zerokit.domain.strategy import REHEARSED, Strategy
from zerokit.errors import InputError
from zerokit.launcher.plan_agreement import of_missing_model
from zerokit.launcher.secrets import Secrets
from zerokit.notes import notes_of, warning
from zerokit.planner import answer, page_below
from zerokit.planner.effects import unread
from zerokit.planner.few_layers import FEW, FURTHER, Depth
from zerokit.planner.memory_source import Say
from zerokit.planner.models import another_model, unlike_planned
from zerokit.planner.one_strategy import one_strategy
from zerokit.planner.options import given_options
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.planned_for import PlannedFor
from zerokit.planner.rehearsed_search import (
    FOR_A_BATCH,
    FOR_CHECKPOINTING,
    FOR_EACH_SEQUENCE,
    RehearsedSearch,
)
from zerokit.planner.request import ResolvedRequest, loss_of, resolve
from zerokit.rehearsal.order import FakeGpu
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.trained_model import is_named
from zerokit.rehearsal.zygote import Zygote
from zerokit.script.agreement import refuse_unplannable
from zerokit.script.argument_warnings import (
    misplaced,
    named_model,
    why_no_training,
    without_defaults,
)
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import ScriptFacts, read_target
from zerokit.script.unlike_job import (
    TRLS_SWITCH,
    takes_model_config,
    with_optimizer_of,
)
from zerokit.script_planner.rehearsals import RehearsedScript, rehearse_strategy, time_note
from zerokit.script_planner.script_decisions import CannotRehearse, ScriptDecisions
from zerokit.search.engines import engine_of
from zerokit.search.plan import Plan, make_plan, make_space
from zerokit.search.space import Request
from zerokit.units import counted, format_count

REHEARSED_BEST = 3
"""So many of the best are rehearsed before one is chosen."""
_BATCHES = (1, 2, 4, 8)
"""Tried in this order until two of them run: some scripts want a batch of several."""
_STAND_IN = "350m"
"""Whose shape is planned for until the first rehearsal has told the script's model."""


@dataclass(slots=True, kw_only=True)
class ScriptPlanning:
    """One plan for one script.

    Attributes:
        seconds: after so long the script is rehearsed only until one plan is that fits.
        left_to_script: words that take a value out of the recipe (``seq_len=``), which the script tells.
        unconfined: rehearse it without namespaces where the kernel gives none.
        no_cache: rehearse it though nothing has changed since an earlier rehearsal.
        zygote: of the script.
        search: the rehearsals so far, and what is found with them.
    """

    target: Target
    options: Mapping[str, Any]
    seconds: float
    say: Say
    zygote: Zygote
    left_to_script: tuple[str, ...] = ()
    unconfined: bool = False
    no_cache: bool = False
    search: RehearsedSearch[RehearsedScript] = field(init=False)
    _script: ScriptOptions = field(init=False)
    _planned: PlannedFor = field(init=False)
    _decisions: ScriptDecisions = field(init=False)
    _trainable: int | None = None
    _layers: int | None = FEW
    _depth: Depth | None = None
    _groups: tuple[str, ...] = ()
    _few: dict[Strategy, RehearsedStrategy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = Path(self.target.name).name if self.target.script else self.target.name
        self.search = RehearsedSearch(
            run=self._run,
            judge=self._run_all_layers,
            deepen=self._run_more_layers,
            best=REHEARSED_BEST,
            seconds=self.seconds,
            say=self.say,
            profile=ScriptProfile(
                name=name,
                command=self.target.digest,
                arguments=tuple(Secrets(os.environ, self.target.arguments).argv(self.target.arguments)),
            ),
        )

    @property
    def _engine(self) -> str:
        return str(self.options.get("engine") or "deepspeed")

    def _run(self, request: Request, strategy: Strategy, limit_seconds: float) -> RehearsedScript:
        """A strategy with few layers, where they tell of all; before that is known, with their figures."""
        done = self._rehearsed(request, strategy, limit_seconds, self._layers)
        if done.done.few_layers is None:
            return done
        if done.rehearsed is not None:
            if self._depth is None:
                return done
            if (whole := self._depth.whole(request, done.rehearsed)) is not None:
                self._few[strategy] = done.rehearsed
                return replace(done, rehearsed=whole)
        elif self._depth is None:  # what stopped it may be that it has few layers
            self._layers = None
        return self._run_all_layers(request, strategy, limit_seconds)

    def _run_more_layers(self, request: Request, strategy: Strategy, limit_seconds: float) -> RehearsedScript:
        """A strategy of which a few layers were rehearsed: these and some further ones tell of all."""
        depth, few = self._depth, self._few.get(strategy)
        if depth is not None and few is not None:
            done = self._rehearsed(request, strategy, limit_seconds, depth.layers + FURTHER)
            if done.rehearsed is not None:
                whole = Depth.of_two(request, few, done.rehearsed, depth.layers, depth.of)
                if whole is not None:
                    return replace(done, rehearsed=whole)
        return self._run_all_layers(request, strategy, limit_seconds)

    def _run_all_layers(self, request: Request, strategy: Strategy, limit_seconds: float) -> RehearsedScript:
        return self._rehearsed(request, strategy, limit_seconds, None)

    def _rehearsed(
        self, request: Request, strategy: Strategy, limit_seconds: float, layers: int | None
    ) -> RehearsedScript:
        return rehearse_strategy(
            self.target, self._script, request, strategy, limit_seconds, zygote=self.zygote,
            unconfined=self.unconfined, no_cache=self.no_cache, layers=layers,
        )  # fmt: skip

    def plan(self, top: int) -> PlanResult:
        """Probe the script, search, and rehearse what comes to the front. Raises InputError, NothingFits: as
        for a plan without a script."""
        facts = read_target(self.target)
        unread_options = misplaced(facts, self.target, "plan")
        named = of_missing_model(without_defaults(facts, self.target.arguments))
        for line in (*unread_options, *named):
            self.say(line)
        self._script = ScriptOptions.read(facts, facts.style, self.target.arguments)
        refuse_unplannable(self._script, self._engine)
        self._decisions = ScriptDecisions(
            script=self.search.profile.name, style=facts.style, asked=self.options, say=self.say,
            adapters_option=TRLS_SWITCH if takes_model_config(facts) else "", told=self._script.told,
        )  # fmt: skip
        try:
            self._check(facts)
            unlike_loss = self._leave_to_rehearsal()
            read = self._probed()
        except CannotRehearse as why:
            self._decisions.kept.pop("loss", None)
            return self._plan_unrehearsed(why, top)
        if unlike_loss:
            self.say(warning("script-loss", unlike_loss))
            self._decisions.notes.append(unlike_loss)
        return self._result(read, self._searched(read.request, top))

    # ---------------------------------------------------------------- before the search

    def _leave_to_rehearsal(self) -> str:
        """What a trainer does beside its model, and its loss, are in the script's own figures; what to say of
        another loss that was asked for."""
        if self.options.get("trainer"):
            self._decisions.kept["trainer"] = "raw"
        loss = loss_of(self._decisions.options)
        if loss == "standard":
            return ""
        self._decisions.kept["loss"] = "standard"
        return f"⟨loss⟩ {loss} left out: the script is rehearsed with its own loss"

    def _another_model(self) -> str | None:
        """That the arguments of the script name another model than those of the plan; None: they do not."""
        named = named_model(self._script)
        if named is None or not self._decisions.names_model:
            return None
        return another_model(*named, self.options, None)

    def _check(self, facts: ScriptFacts) -> None:
        """Refuse what no rehearsal can be made of. Raises CannotRehearse: says why."""
        if facts.style == "none":
            raise CannotRehearse(f"no plan's configuration reaches it ({facts.why})")
        untrained = why_no_training(self._script)
        if untrained is not None:
            raise CannotRehearse(f"no training step would be seen: {untrained}")
        if self.options.get("inference"):
            raise CannotRehearse("⟨inference⟩: only training is rehearsed")

    def _resolved(self) -> ResolvedRequest:
        """The request, with what the script decides, as far as is known."""
        options = self._decisions.options
        if not options.get("model") and not options.get("params"):
            options["params"] = _STAND_IN
        read = resolve(with_optimizer_of(self._script, options), say=self.say)
        self._planned = PlannedFor.of(
            replace(read.request, job=replace(read.request.job, optimizer_groups=self._groups)),
            self._script.fixed(),
            self._decisions.kept,
            search_tensor=self._script.feeds_peers_alike and self._engine == "deepspeed",
        )
        return replace(read, request=self._planned.request, options={**read.options, **self._planned.decided})

    def _probed(self) -> ResolvedRequest:
        """Rehearse at two batch sizes, without and with checkpointing where the script can do both. Raises
        CannotRehearse: none went to the end. InputError: the model that was named is not the script's."""
        read = self._resolved()
        if read.request.cluster.on_cpu:
            raise CannotRehearse(
                "a plan for a script is for GPUs (⟨gpu⟩ NAME), not for CPU ranks; `zerokit launch --no-plan "
                f"--device cpu {self.search.profile.name}` runs it here",
                is_of_script=False,
            )
        try:
            FakeGpu.of(read.request.cluster.gpu, 1)
        except InputError as error:
            raise CannotRehearse(error.marked) from None
        if (unlike := self._another_model()) is not None:
            raise InputError(f"{unlike}; {self._decisions.leave_model_out}")
        micro = read.request.pins.micro_batch
        batches = (micro,) if micro is not None else _BATCHES
        modes = [read.request.pins.checkpointing] if read.request.pins.checkpointing else ["none", "full"]
        fed: dict[int, tuple[int | None, int | None]] = {}
        first: Rehearsal | None = None
        why, to_fix = "", None
        for batch in batches:
            purpose = FOR_EACH_SEQUENCE if fed else FOR_A_BATCH
            done = self.search.rehearse(read.request, self._probe(read.request, batch, modes[0]), purpose)
            if done.rehearsed is None:
                repeated = why == done.why_not and not done.came_up
                if not why:
                    why, to_fix = done.why_not, done.to_fix
                if fed or repeated or not done.batch_may_cure:
                    break
                continue
            engine = done.done.engine or {}
            if first is None and (own := self._decisions.take_own(done.done, done.strategy)):
                self.search.forget_rehearsals(f"the script trained with {own}")
                return self._probed()
            fed[batch] = engine.get("batch_rows"), engine.get("batch_columns")
            if first is None:
                first = done.done
                self._learn_job(engine)
                if self._decisions.take_model(first, done.strategy) or self._groups:
                    read = self._resolved()
                method = read.request.job.method
                self._decisions.refuse_unlike_model(first, read.request.shape.parameters, method)
                if not self._counts_on_layers(read.request, done):
                    self.search.forget_rehearsals("its layers do not tell of each other")
                    return self._probed()
            if len(fed) == 2:
                break
        if first is None:
            raise CannotRehearse(why, to_fix=to_fix)
        if micro is not None and self._decisions.may_ignore_batch(fed):
            other = 1 if micro > 1 else 2
            done = self.search.rehearse(read.request, self._probe(read.request, other, modes[0]), FOR_A_BATCH)
            engine = done.done.engine or {}
            if done.rehearsed is not None:
                fed[other] = engine.get("batch_rows"), engine.get("batch_columns")
        if (rows := self._decisions.take_batch(fed)) is not None:  # not the batch that it was told
            self.search.forget_rehearsals(f"the script ran with micro-batch {rows}", but_micro_batch=rows)
            read = self._resolved()
        last = read.request.pins.micro_batch or max(fed)
        if last not in fed and self.search.time_is_left:
            self.search.rehearse(read.request, self._probe(read.request, last, modes[0]), FOR_EACH_SEQUENCE)
        # what one more sequence takes beside the replay is the same with checkpointing
        for mode in modes[1:] if self.search.time_is_left else []:
            self.search.rehearse(read.request, self._probe(read.request, last, mode), FOR_CHECKPOINTING)
        return read

    def _counts_on_layers(self, request: Request, done: RehearsedScript) -> bool:
        """Whether the first rehearsal can stand, which may be one of few layers: not where more of them take
        something else than the replay says. All others are then of all layers."""
        seen = done.done.few_layers
        if seen is None or done.rehearsed is None:
            self._layers = None
            return True
        fewer, (layers,) = done.rehearsed, seen["layers"]
        if not self.search.profile.other_parameters and self.search.profile.engines == 1:
            further = self._rehearsed(request, fewer.strategy, self.seconds, layers + FURTHER).rehearsed
            if further is not None:
                self._depth = Depth.seen(request, fewer, further, layers, seen["of"])
        whole = None if self._depth is None else self._depth.whole(request, fewer)
        if whole is None:
            self._layers = self._depth = None
            return False
        self._few[fewer.strategy] = fewer
        self.search.restate(whole)
        return True

    def _learn_job(self, engine: Mapping[str, Any]) -> None:
        """Other models and engines, and whether a row of the data is several sequences to the model, as a
        pair of DPO is."""
        self.search.profile = replace(
            self.search.profile,
            engines=engine.get("engines") or 1,
            other_parameters=engine.get("other_parameters") or 0,
        )
        self._groups = tuple(engine.get("optimizer_groups") or ())
        loaded, fed = engine.get("loader_rows"), engine.get("batch_rows")
        if not loaded or not fed or fed == loaded or fed % loaded:
            return
        profile = replace(self.search.profile, sequences_per_row=fed // loaded)
        self.search.profile = profile
        self._decisions.notes.append(
            f"a row of the data is {fed // loaded} sequences to the script's model: batch sizes count "
            f"{profile.rows(2).partition(' ')[2]}"
        )

    def _probe(self, request: Request, batch: int, checkpointing: str) -> Strategy:
        """A strategy to learn of the script. All probes have the same sizes, though the first is made before
        the script's model is known."""
        pins = request.pins
        probed = replace(
            pins,
            micro_batch=batch,
            gradient_accumulation=pins.gradient_accumulation or 1,
            checkpointing=checkpointing,
        )
        probe_request = replace(request, job=replace(request.job, global_batch=None), pins=probed)
        space = make_space(probe_request)[0]
        if self._trainable is None:
            self._trainable = space.timing.trainable
        fixed = engine_of(space).probe(probed, request.cluster.gpus, self._trainable)
        return one_strategy(replace(probe_request, pins=fixed))[0]

    # ---------------------------------------------------------------- the search

    def _searched(self, request: Request, top: int) -> Plan:
        plan = self.search.search(request, top)
        chosen = plan.chosen
        if chosen.memory.basis != REHEARSED:
            self._decisions.notes.append(
                "this plan itself was not rehearsed: after "
                f"{counted(len(self.search.records), 'rehearsal')} others came first"
            )
        if self.search.passed_over:
            self._decisions.notes.append(self.search.passed_over)
        if why := self.search.why_few(chosen.strategy):
            self._decisions.notes.insert(0, why)
        rehearsed = self.search.profile.of(chosen.strategy)
        if rehearsed is not None and rehearsed.fed:
            self._decisions.notes.insert(0, f"rehearsed with {rehearsed.fed}")
        if rehearsed is not None and rehearsed.step_seconds_range is not None:
            self._decisions.notes.append(time_note(rehearsed.step_seconds_range, rehearsed.host_factor))
        own_half = request.precision in ("bf16", "fp16") and not self._decisions.is_asked("precision")
        if own_half and self._engine == "deepspeed" and self._script.runs_without_deepspeed:
            self._decisions.notes.append(answer.UNDER_DEEPSPEED)
        warned = rehearsed or next(reversed(self.search.profile.rehearsed), None)
        for text in warned.warnings if warned is not None else ():
            self.say(warning("rehearsal", text))
            self._decisions.notes.append(text)
        assumptions = (*plan.assumptions, *notes_of("script", self._decisions.notes))
        return replace(plan, alternatives=plan.alternatives[: max(0, top - 1)], assumptions=assumptions)

    # ---------------------------------------------------------------- the result

    def _result(self, read: ResolvedRequest, plan: Plan) -> PlanResult:
        request = read.request
        explained = self._planned.with_own_reasons(plan)
        notes = notes_of("unread", unread(self.options, [plan.chosen.strategy]))
        given = given_options(self.options)
        self.search.profile = replace(
            self.search.profile,
            model=self._model_name(read),
            decided=tuple(name for name, value in read.options.items() if given.get(name) != value),
        )
        return PlanResult(
            request=read.options,
            plan=replace(explained, assumptions=(*explained.assumptions, *notes)),
            job=make_space(request)[0].job,
            cluster=plan.cluster,
            model_name=self._model_name(read),
            parameters=request.shape.parameters,
            script=self.search.profile,
            rehearsals=self.search.last_records,
            added_arguments=self._script.additions(PlannedValues.of(plan.chosen.strategy)),
            _below=page_below,
        )

    def _model_name(self, read: ResolvedRequest) -> str:
        """The catalogue's where the user or the script names that model; else as the script has it, or the
        script's own, with the model's size."""
        name = self._decisions.model_name
        if "model" not in self._decisions.kept or is_named(read.model_name, name):
            return read.model_name
        shape = read.request.shape
        size = f"({shape.family}, {format_count(shape.parameters)} parameters)"
        return f"{name or self.search.profile.name} {size}"

    def _plan_unrehearsed(self, why: CannotRehearse, top: int) -> PlanResult:
        """Plan as if there were no script, and say so. Raises InputError: no model was named either."""
        failure = f"{self.search.profile.name} could not be rehearsed: {why}"
        if not self._decisions.names_model:
            if why.to_fix:
                raise InputError(f"{failure}; fix that, then plan again")
            fix = "fix what stops it, or " if why.is_of_script else ""
            raise InputError(
                f"{failure}; {fix}name the model with ⟨model⟩ (or a config.json) or ⟨params⟩ to plan without "
                "a rehearsal"
            )
        if self.left_to_script:
            raise InputError(
                f"{failure}; so nothing tells what {' '.join(self.left_to_script)} leaves to the script, "
                "and no plan was made: fix what stops the rehearsal, or leave those words out"
            )
        self.say(failure)
        named = named_model(self._script)
        unlike = unlike_planned(*named, self.options, None) if named is not None else None
        if unlike is not None:
            self.say(warning("another-model", unlike))
            self._decisions.notes.append(unlike)
        read = self._resolved()
        plan = make_plan(read.request, top=top)
        note = f"{failure}; memory and time are those of a plain training loop of the model"
        result = self._result(
            read,
            replace(
                plan, assumptions=(*plan.assumptions, *notes_of("script", (*self._decisions.notes, note)))
            ),
        )
        return replace(result, to_fix=why.to_fix)
