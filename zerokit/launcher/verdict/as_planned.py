"""Whether a run that ended well did what its plan says, by what its engines ran with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.domain.settings import BY_OPTION
from zerokit.launcher.rank_file import RankLog
from zerokit.report.measured import had_engine
from zerokit.report.what_ran import differences

_FEWEST_STEPS = 2  # a first step may be odd


def unlike_plan(plan: Mapping[str, Any], style: str, ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the ranks (of ``report.json``) did something else than the plan (``request`` and ``chosen``)
    decided, one sentence each.

    A Trainer feeds what its arguments say, but a row may be half of a pair (DPO), so its batch is what they
    say when it begins to train, else what it told its engine. What belongs to the job (length, model,
    adapters) is the report's matter alone.
    """
    if style == "trainer":
        ranks = [{**rank, "engine": _without_rows(rank.get("engine"))} for rank in ranks]
    return [
        one.text
        for one in differences(plan, ranks)
        if (row := BY_OPTION.get(one.option or "")) is not None and row.decides_run
    ]


def _without_rows(engine: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    fed = engine.get("loader_rows") or engine.get("micro_batch")
    return {**engine, "batch_rows": None, "batch_columns": None, "micro_batch": fed}


def no_engine(ranks: Iterable[Mapping[str, Any]]) -> str | None:
    """What to say where no rank made a DeepSpeed engine, though a configuration was given."""
    if any(had_engine(rank) for rank in ranks):
        return None
    return (
        "no DeepSpeed engine came up: the script ran without the configuration that it was given; look for "
        "an option of the script that turns DeepSpeed on, say how it takes it (--style raw, accelerate or "
        "trainer), or measure it as it is with --no-plan"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """What a run that was given a configuration is held to: a plan's ``request`` and ``chosen`` (None where a
    difference was accepted, or there is no plan); and what the script's arguments lack to train, if that is
    known."""

    plan: Mapping[str, Any] | None
    style: str
    why_no_training: str | None = None
    is_accepted: bool = False

    def differences(self, logs: Mapping[int, RankLog]) -> tuple[str, ...]:
        """Where the ranks did something else, one sentence each."""
        ranks = [_engine_facts(log) for _, log in sorted(logs.items())]
        missing = no_engine(ranks)
        if missing is not None and self.why_no_training is not None:
            return (f"no training step was seen: {self.why_no_training}",)
        if missing is not None:
            return (missing,)
        return () if self.plan is None else tuple(unlike_plan(self.plan, self.style, ranks))


def _engine_facts(log: RankLog) -> dict[str, Any]:
    record = log.last("end", "tick") or {}
    return {
        "engine": log.last("engine"),
        "steps": record.get("steps") or 0,
        "steps_counted_by": record.get("steps_counted_by"),
        "micro_steps": record.get("micro_steps") or 0,
        "most_micro_steps": record.get("most_micro_steps") or 0,
        "phase_details": record.get("phases") or {},
    }


class FirstSteps:
    """Watches a run's records for what is not as planned, to say it while there is time to act."""

    def __init__(self, plan: Mapping[str, Any] | None, style: str, expected_ranks: int) -> None:
        self._plan, self._style, self._ranks = plan, style, expected_ranks
        self._said: set[str] = set()

    def news(self, rank: Mapping[str, Any]) -> list[str]:
        """What became known of a rank's engine and steps, each sentence once."""
        if self._plan is None or rank["steps"] < _FEWEST_STEPS or rank["engine"] is None:
            return []
        unlike = unlike_plan(self._plan, self._style, [rank] * self._ranks)
        unsaid = [text for text in unlike if text not in self._said]
        self._said.update(unsaid)
        return unsaid
