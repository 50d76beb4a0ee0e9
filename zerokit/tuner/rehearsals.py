"""The plans to try, with the script rehearsed with each: what a rehearsal says cannot fit is not tried."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerokit.domain.job import Job
from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile, same_memory
from zerokit.domain.strategy import Candidate, MemoryEstimate, Strategy
from zerokit.errors import ZerokitError
from zerokit.launcher.secrets import Secrets
from zerokit.planner.memory_source import Say
from zerokit.planner.plan_result import RehearsalRecord
from zerokit.planner.rehearsed_search import FOR_EACH_SEQUENCE, RehearsalOutcome, RehearsedSearch
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.search.explain import strategy_words
from zerokit.search.search import fits
from zerokit.search.sizing import distinct
from zerokit.search.space import Request
from zerokit.units import format_gib

Rehearse = Callable[[Target, ScriptOptions, Request, Strategy, float], RehearsalOutcome]
"""Rehearses a script with a strategy of a request, within so many seconds."""
Rehearsing = Callable[[Target], AbstractContextManager[Rehearse]]
"""In its block a script is rehearsed; what all rehearsals share is gone at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A rehearsal that could not be started."""

    why_not: str
    rehearsed: RehearsedStrategy | None = None
    when_kept: str = ""


@dataclass(slots=True, kw_only=True)
class TrialRehearsals:
    """The rehearsals of one tuning, for which ``count`` plans are to be tried: after so many seconds no
    further plan is rehearsed (0: none is). ``why_none``: why nothing was rehearsed, if nothing was."""

    target: Target
    script: ScriptOptions
    request: Request
    job: Job
    count: int
    seconds: float
    rehearsing: Rehearsing | None
    say: Say
    why_none: str | None = None
    _search: RehearsedSearch[RehearsalOutcome] | None = None
    _rehearse: Rehearse | None = None

    def __post_init__(self) -> None:
        if self.request.cluster.on_cpu:
            self.why_none = "a rehearsal tells the memory of GPUs, and these are CPU ranks"
        elif self.rehearsing is None or not self.seconds:
            self.why_none = "⟨rehearsal_seconds⟩ is 0"

    def choose(self, planned: list[Candidate]) -> list[Candidate]:
        """What to try in place of ``planned``: the best with what the rehearsals show; the same where the
        script cannot be rehearsed. Raises NothingFits: with what the script holds, nothing does. Raises
        InputError: the script failed with every plan that would fit."""
        if self.why_none is not None or self.rehearsing is None:
            return planned
        with self.rehearsing(self.target) as self._rehearse:
            name = Path(self.target.name).name if self.target.script else self.target.name
            self._search = search = RehearsedSearch(
                run=self._run, best=self.count, seconds=self.seconds, say=self.say, takes_unrehearsed=True,
                profile=ScriptProfile(name=name, command=self.target.digest),
            )  # fmt: skip
            first = search.rehearse(self.request, planned[0].strategy)
            if first.rehearsed is None:
                self.why_none = f"{name} could not be rehearsed: {first.why_not}"
                return planned
            if fits(self._memory(first.rehearsed.strategy), self.request.cluster) is not None:
                self._rehearse_one_sequence(search, first.rehearsed.strategy)
            plan = search.search(self.request, self.count)
            usable = [plan.chosen, *plan.alternatives]
            chosen = [  # with the memory of every rank
                replace(candidate, memory=self._memory(candidate.strategy))
                for candidate in distinct(usable, self.count)
            ]
            for text in self.not_tried(chosen):
                self.say(f"not tried: {text}")
            return chosen

    def _rehearse_one_sequence(self, search: RehearsedSearch[RehearsalOutcome], strategy: Strategy) -> None:
        """With the smallest batch: what the script holds for each sequence, and what it always holds, can
        only be told apart with two batches."""
        settings = strategy.settings
        if settings.micro_batch == 1 or self.request.pins.micro_batch is not None:
            return
        accumulation = settings.gradient_accumulation
        if self.request.pins.gradient_accumulation is None:
            accumulation *= settings.micro_batch
        smallest = replace(settings, micro_batch=1, gradient_accumulation=accumulation)
        search.rehearse(self.request, replace(strategy, settings=smallest), FOR_EACH_SEQUENCE)

    def _memory(self, strategy: Strategy) -> MemoryEstimate:
        assert self._search is not None
        memory = self._search.informed(self.request).memory.detailed()
        return memory(self.job, strategy, self.request.cluster)

    def _run(self, request: Request, strategy: Strategy, limit_seconds: float) -> RehearsalOutcome:
        assert self._rehearse is not None
        try:
            return self._rehearse(self.target, self.script, request, strategy, limit_seconds)
        except ZerokitError as error:
            return _Refused(why_not=str(error))

    def profile(self, arguments: tuple[str, ...]) -> ScriptProfile | None:
        """What was rehearsed, as that of the command with a trial's arguments; None: nothing was."""
        if self._search is None or self.why_none is not None:
            return None
        masked = tuple(Secrets(os.environ, arguments).argv(arguments))
        digest = replace(self.target, arguments=arguments).digest
        return replace(self._search.profile, command=digest, arguments=masked)

    def of(self, strategy: Strategy) -> RehearsedStrategy | None:
        """The rehearsal that holds for a strategy."""
        return None if self._search is None else self._search.profile.of(strategy)

    @property
    def _records(self) -> list[RehearsalRecord]:
        return [] if self._search is None else self._search.records

    def not_tried(self, chosen: list[Candidate]) -> list[str]:
        """The rehearsed plans that are not among those to try, each with the reason, in a sentence."""
        memory_keys = {same_memory(candidate.strategy) for candidate in chosen}
        return [
            f"{strategy_words(record.strategy)}: {self._why_not(record)}"
            for record in self._records
            if same_memory(record.strategy) not in memory_keys
        ]

    def _why_not(self, record: RehearsalRecord) -> str:
        if record.stopped is not None:
            return f"its rehearsal did not end: {record.stopped}"
        memory = self._memory(record.strategy)
        if fits(memory, self.request.cluster) is None:
            return "others are faster, with what the rehearsals show"
        needed, available = memory.min_vram_bytes, self.request.cluster.gpu.driver_vram_bytes
        if needed > available:
            return f"rehearsed, it takes {format_gib(needed)}; the GPU has {format_gib(available)}"
        return f"rehearsed, it takes {format_gib(memory.host_bytes_per_node)} of host memory: too much"

    def to_dict(self) -> list[dict[str, Any]]:
        """``rehearsals`` of ``tune --json``, as those of ``plan --json``."""
        return [record.to_dict() for record in self._records]
