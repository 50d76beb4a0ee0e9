"""When a plan that was rehearsed with few layers stands, and when more or all of them are rehearsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.support.requests import request_for
from zerokit.domain.job import Job
from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile
from zerokit.domain.strategy import Strategy
from zerokit.planner.rehearsed_search import RehearsedSearch
from zerokit.search.space import Request

GIB = 1 << 30
LATE = "it did not end within 300 s"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    rehearsed: RehearsedStrategy | None
    why_not: str = ""
    when_kept: str = ""


Run = Callable[[Request, Strategy, float], Outcome]


def takes(peak: float, layers: tuple[int, int] | None, seen: list[str]) -> Run:
    """A rehearsal of such layers that finds so many GiB."""

    def rehearse(request: Request, strategy: Strategy, limit: float) -> Outcome:
        seen.append("few" if layers else "all")
        found = RehearsedStrategy(
            strategy=strategy, phases={"forward": int(peak * GIB)}, min_vram_bytes=int((peak + 3) * GIB),
            components={"activations": int(peak * GIB)}, step_seconds=1.0, layers=layers,
        )  # fmt: skip
        return Outcome(rehearsed=found)

    return rehearse


def late(request: Request, strategy: Strategy, limit: float) -> Outcome:
    return Outcome(rehearsed=None, why_not=LATE)


def searched(few: float, judge: Callable[[list[str]], Run]) -> tuple[str, RehearsedStrategy, list[str]]:
    """How the choice was rehearsed, in words; what is known of it; and which rehearsals there were."""
    seen: list[str] = []
    search = RehearsedSearch(
        run=takes(few, (3, 16), seen), judge=judge(seen), best=1, seconds=600, say=lambda text: None,
        profile=ScriptProfile(name="train.py", command=""),
    )  # fmt: skip
    request = request_for("llama-3.2-1b", "h200", 2, job=Job(seq_len=2048, global_batch=64))
    chosen = search.search(replace(request, all_gpus=True), 3).chosen
    known = search.profile.of(chosen.strategy)
    assert known is not None and chosen.memory.worst.peak_allocated_bytes >= known.peak_allocated_bytes
    return search.why_few(chosen.strategy), known, seen


def test_a_plan_that_is_clear_of_the_card_stands() -> None:
    why, known, seen = searched(100, lambda seen: takes(100, None, seen))
    assert set(seen) == {"few"} and known.layers == (3, 16)
    assert why == "rehearsed with 3 of 16 layers; what the others take is replayed"


@pytest.mark.parametrize("whole", [130.1, 132.0])
def test_one_that_nearly_fills_it_is_rehearsed_with_all(whole: float) -> None:
    why, known, seen = searched(130, lambda seen: takes(whole, None, seen))
    assert (why, known.layers) == ("", None) and known.peak_allocated_bytes == int(whole * GIB)
    after = seen[seen.index("all") :]
    assert ("few" in after) <= (whole < 131)  # where the few were wrong no others of them count


def test_where_that_takes_too_long_it_is_said() -> None:
    why, known, _ = searched(130, lambda _: late)
    assert known.layers == (3, 16) and why.endswith(f"(with more of them: {LATE})")


def test_more_layers_tell_how_long_a_step_of_the_choice_takes() -> None:
    """The first choice takes three times as long as a few layers said: the next stands, itself deepened."""
    seen: list[str] = []
    deepened: list[Strategy] = []
    few = takes(100, (3, 16), seen)

    def deepen(request: Request, strategy: Strategy, limit: float) -> Outcome:
        found = few(request, strategy, limit).rehearsed
        assert found is not None and found.step_seconds is not None
        longer = found.step_seconds * (1.0 if deepened else 3.0)
        deepened.append(strategy)
        return Outcome(rehearsed=replace(found, layers=(6, 16), step_seconds=longer))

    search = RehearsedSearch(
        run=few, judge=takes(100, None, seen), deepen=deepen, best=2, seconds=600, say=lambda text: None,
        profile=ScriptProfile(name="train.py", command=""),
    )  # fmt: skip
    request = request_for("llama-3.2-1b", "h200", 2, job=Job(seq_len=2048, global_batch=64))
    chosen = search.search(replace(request, all_gpus=True), 3).chosen.strategy
    known = search.profile.of(chosen)
    assert len(deepened) == 2 and chosen == deepened[1] != deepened[0] and "all" not in seen
    assert known is not None and (known.layers, known.step_seconds) == ((6, 16), 1.0)
