"""What a plan is: the choice and what it was chosen from, typed, and as ``zerokit.plan/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.script_profile import ScriptProfile
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.fields import all_as_options, as_options, plain
from zerokit.planner.documents import PlannedStrategy, Read, Sentences, as_json, degrees, html_facts
from zerokit.search.plan import Plan
from zerokit.values import frozen_dataclass, replace

if TYPE_CHECKING:
    from zerokit.planner.memory_source import Say


PLAN_SCHEMA = "zerokit.plan/1"


@frozen_dataclass
class RehearsalRecord:
    """One rehearsal that a plan for a script made. Bytes; ``seconds``: what it took.

    Attributes:
        stopped: why it did not go to the end; None: it did.
        probe: it was made to learn of the script; its buckets are not those of a plan.
        layers: of the model that were rehearsed, and of how many; None: all.
    """

    strategy: Strategy
    seconds: float
    peak_allocated_bytes: int | None
    min_vram_bytes: int | None
    step_seconds: float | None
    stopped: str | None
    probe: bool = False
    layers: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``rehearsals``."""
        names = ("peak_allocated_bytes", "min_vram_bytes", "step_seconds", "stopped", "probe", "layers")
        figures = {name: getattr(self, name) for name in names}
        return {**degrees(self.strategy), "seconds": round(self.seconds, 1), **figures}


@frozen_dataclass(slots=False)
class PlanResult:
    """The fastest strategy that fits, and what it was chosen from.

    Attributes:
        request: the arguments that were given, by option without dashes in front.
        plan: what the search found.
        job, cluster: what was planned for; the job with the batch that was settled on.
        parameters: the model's.
        files: kind → path of the files that were written.
        script: what was learnt of the script that is planned for; None: there is none.
        rehearsals: those that were made.
        added_arguments: what a launch with this plan adds to the script's own.
        script_words: the script, with its arguments, of the plan that this one was made from without it.
        to_fix: the error of the script or its arguments that ended its rehearsal and will end a run, with its
            location; None: there is none.
    """

    request: Mapping[str, Any]
    plan: Plan
    job: Job
    cluster: Cluster
    model_name: str
    parameters: int
    timed: bool = True
    on_cpu: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    script: ScriptProfile | None = None
    rehearsals: tuple[RehearsalRecord, ...] = ()
    added_arguments: tuple[str, ...] = ()
    script_words: tuple[str, ...] = ()
    to_fix: str | None = None

    def _planned(self, candidate: Candidate) -> PlannedStrategy:
        return PlannedStrategy(
            candidate=candidate, job=self.job, cluster=self.cluster, notes=self.plan.assumptions,
            timed=self.timed, on_cpu=self.on_cpu, script=self.script,
        )  # fmt: skip

    @cached_property
    def chosen(self) -> PlannedStrategy:
        """The fastest that fits."""
        return replace(self._planned(self.plan.chosen), parameters=self.parameters)

    @cached_property
    def alternatives(self) -> tuple[PlannedStrategy, ...]:
        """The next best, fastest first."""
        return tuple(self._planned(candidate) for candidate in self.plan.alternatives)

    @property
    def strategies(self) -> tuple[PlannedStrategy, ...]:
        """All that were kept (``top`` says how many), fastest first: ``chosen``, then ``alternatives``."""
        return (self.chosen, *self.alternatives)

    rejected = Read[Mapping[str, int]]("plan.rejected", "Reason → how many candidates it ruled out.")
    candidates = Read[int]("plan.candidates", "How many strategies were looked at.")
    global_batch = Read[int]("plan.global_batch", "Sequences per optimizer step.")

    assumptions = Sentences("plan.assumptions", "What was assumed, in sentences.")
    faster_with = Sentences("plan.faster_with", "What would be faster, and what it takes, in sentences.")
    advice = Sentences("plan.advice", "What is worth knowing, in sentences.")

    def __repr__(self) -> str:
        """What a Python prompt shows: the answer in a few lines."""
        from zerokit.planner import answer, documents
        from zerokit.search.explain import cluster_words

        chosen = self.chosen
        return "\n".join((
            f"<Plan for {self.model_name} on {cluster_words(self.cluster)}:",
            f"  {answer.strategy(chosen.strategy)}",
            f"  {documents.batch(chosen)}",
            f"  {plain(documents.fits(chosen))}",
            *((f"  {plain(self.plan.left_idle)}",) if self.plan.left_idle else ()),
            f"  {'; '.join((documents.pace(chosen), *documents.pace_notes(chosen)))}>",
        ))  # fmt: skip

    def _repr_html_(self) -> str:
        return html_facts(self.chosen, self.model_name)

    def write(self, folder: str | Path, say: Say | None = None) -> dict[str, str]:
        """Write ``ds_config.json``, ``accelerate.yaml``, ``plan.yaml`` and variants; returns kind → path.

        Args:
            say: hears of an older plan for something else, which this one replaces.

        Raises:
            InputError: the folder cannot be written.
        """
        from zerokit.planner.plan_folder import replaced, write_plan

        older = replaced(Path(folder), self.request) if say is not None else None
        if say is not None and older is not None:
            say(older)
        return write_plan(Path(folder), self.chosen, self.request, assumptions=self.plan.assumptions)

    def to_dict(self) -> dict[str, Any]:
        """What ``plan --json`` prints."""
        from zerokit.planner.answer import script_must

        plan = self.plan
        of_script = {
            "rehearsals": as_json(self.rehearsals),
            "added_arguments": list(self.added_arguments),
            "to_fix": self.to_fix,
        }
        return {
            "schema": PLAN_SCHEMA,
            "request": dict(self.request),
            "chosen": self.chosen.to_dict(),
            "alternatives": [alternative.to_dict(by_phase=False) for alternative in self.alternatives],
            "rejected": {as_options(reason): count for reason, count in plan.rejected.items()},
            "search": {"candidates": plan.candidates, "seconds": plan.seconds},
            "global_batch": plan.global_batch,
            "assumptions": list(all_as_options(plan.assumptions)),
            "faster_with": list(all_as_options(plan.faster_with)),
            "advice": list(all_as_options(plan.advice)),
            "notes": as_json((*plan.assumptions, *plan.advice)),
            "script_must": list(script_must(self.plan.chosen.strategy, self.job)),
            "files": dict(self.files),
            **(of_script if self.script is not None else {}),
        }
