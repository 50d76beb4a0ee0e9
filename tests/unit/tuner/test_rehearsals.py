"""What ``zerokit tune`` tries once its plans were rehearsed: nothing that a rehearsal says cannot fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.requests import request_for
from zerokit.domain.job import Job
from zerokit.domain.script_profile import RehearsedStrategy
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.errors import InputError, NothingFits
from zerokit.planner.request import resolve
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import read_script
from zerokit.search.plan import make_plan, make_space
from zerokit.search.space import Request
from zerokit.tuner.rehearsals import TrialRehearsals

GIB = 1 << 30
SCRIPT = Path(__file__).parents[2] / "faults" / "programs" / "tuned.py"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    rehearsed: RehearsedStrategy | None
    why_not: str = ""
    when_kept: str = ""


def holds(extra: Callable[[Strategy], int]) -> Callable[..., Outcome]:
    """A rehearsal that finds so many bytes beside the model, and a step of a second."""

    def rehearse(
        target: Target, options: ScriptOptions, request: Request, strategy: Strategy, limit: float
    ) -> Outcome:
        job = replace(request.job, global_batch=strategy.global_batch)
        plain, more = request.memory(job, strategy, request.cluster), extra(strategy)
        found = RehearsedStrategy(
            strategy=strategy,
            phases={phase: size + more for phase, size in plain.ranks[0].phases.items()},
            min_vram_bytes=plain.min_vram_bytes + more,
            components={"teacher": plain.worst.peak_allocated_bytes + more},
            step_seconds=1.0,
        )
        return Outcome(rehearsed=found)

    return rehearse


def rehearsals(rehearse: Callable[..., Outcome], said: list[str], **more: float) -> TrialRehearsals:
    request = request_for("llama-3.2-1b", "h200", 2, job=Job(seq_len=2048, global_batch=64))
    request = replace(request, all_gpus=True)
    target = Target(script=str(SCRIPT), module=None, arguments=("--batch", "{micro_batch}"))
    return TrialRehearsals(
        target=target, script=ScriptOptions.read(read_script(SCRIPT, None), "raw", target.arguments),
        request=request, job=make_space(request)[0].job, count=3,
        rehearsing=lambda target: nullcontext(rehearse), say=said.append,
        **{"seconds": 600.0, **more},
    )  # fmt: skip


def planned(tuned: TrialRehearsals) -> list[Candidate]:
    plan = make_plan(tuned.request, top=12)
    return [plan.chosen, *plan.alternatives][: tuned.count]


def test_what_a_rehearsal_says_cannot_fit_is_not_tried() -> None:
    said: list[str] = []
    # as logits that the script keeps: far more than the replay knows of
    tuned = rehearsals(holds(lambda strategy: strategy.settings.micro_batch * 20 * GIB), said)
    before = planned(tuned)
    assert max(candidate.strategy.settings.micro_batch for candidate in before) > 8
    chosen = tuned.choose(before)
    assert len(chosen) == 3
    for candidate in chosen:
        known = tuned.of(candidate.strategy)
        assert known is not None and candidate.memory.basis == "rehearsed"
        assert candidate.memory.worst.peak_allocated_bytes == known.peak_allocated_bytes
        assert candidate.memory.min_vram_bytes <= tuned.request.cluster.gpu.driver_vram_bytes
    left = tuned.not_tried(chosen)
    assert any("rehearsed, it takes" in text and "the GPU has 140.40 GiB" in text for text in left), left
    assert [f"not tried: {text}" for text in left] == [text for text in said if text.startswith("not tried")]
    assert len(tuned.to_dict()) == len(left) + 3
    mine = tuned.profile(("--batch", "4"))
    assert mine is not None  # the plan that is kept is known again by the command that was tried
    assert mine.command == replace(tuned.target, arguments=("--batch", "4")).digest
    assert mine.facts["script"]["arguments"] == ["--batch", "4"]  # or another's, which is then named


def test_a_script_that_fits_no_card_is_not_tried_at_all() -> None:
    tuned = rehearsals(holds(lambda strategy: 200 * GIB), [])
    with pytest.raises(NothingFits, match=r"of tuned\.py led to this"):
        tuned.choose(planned(tuned))


def test_a_script_that_cannot_be_rehearsed_is_tried_as_planned() -> None:
    said: list[str] = []
    tuned = rehearsals(lambda *_: Outcome(rehearsed=None, why_not="a.py:3: no such operator"), said)
    before = planned(tuned)
    assert tuned.choose(before) == before
    assert tuned.why_none == "tuned.py could not be rehearsed: a.py:3: no such operator"
    assert (tuned.profile(()), tuned.not_tried(before)) == (None, tuned.not_tried(before))

    def refuse(*_: object) -> Outcome:
        raise InputError("NVIDIA GPUs only")

    tuned = rehearsals(refuse, said)
    tuned.choose(before)
    assert "NVIDIA GPUs only" in (tuned.why_none or "")


def test_nothing_is_rehearsed_in_no_time_or_on_cpu_ranks() -> None:
    def never(*_: object) -> Outcome:
        raise AssertionError("rehearsed")

    tuned = rehearsals(never, [], seconds=0)
    before = planned(tuned)
    assert tuned.choose(before) == before
    assert tuned.why_none is not None and json.dumps(tuned.to_dict()) == "[]"
    request = resolve({"params": "20m", "gpus": 2, "device": "cpu"}).request
    on_cpu = replace(tuned, request=request, why_none=None, seconds=600)
    assert "CPU ranks" in (on_cpu.why_none or "")
