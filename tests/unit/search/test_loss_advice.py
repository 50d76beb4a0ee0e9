"""What is said of a loss that takes much of the peak."""

from __future__ import annotations

import re
from typing import Any

import pytest

import zerokit
from zerokit.errors import InputError
from zerokit.planner.request import resolve
from zerokit.search.loss_advice import FASTER_WITH_LOSS

ON_4090S = {"model": "llama-3.1-8b", "gpus": 8, "gpu": "rtx-4090", "seq_len": 4096}


def _on_loss(**job: Any) -> list[str]:
    advice = zerokit.plan(**job).plan.advice
    return [note for note in advice if "⟨loss⟩" in note or "cross-entropy" in note]


def test_the_gain_that_is_named_is_that_of_the_plan_with_the_option() -> None:
    (note,) = _on_loss(**ON_4090S)
    named = re.fullmatch(rf"{re.escape(FASTER_WITH_LOSS)}(\d+)% faster", note)
    assert named, note
    plain, *fused = (zerokit.plan(**ON_4090S, loss=loss).chosen for loss in ("standard", "chunked", "liger"))
    for plan in fused:
        assert plan.candidate.time.step_seconds < plain.candidate.time.step_seconds
    gain = plain.candidate.time.step_seconds / fused[0].candidate.time.step_seconds - 1
    assert gain == pytest.approx(int(named[1]) / 100, abs=0.006)


def test_where_a_plan_is_no_faster_the_memory_that_is_saved_is_named() -> None:
    job = {"model": "llama-3.1-8b", "gpus": 1, "gpu": "h200", "method": "lora", "micro_batch": 2}
    (note,) = _on_loss(**job, checkpointing="full", zero=0)
    assert re.match(
        r"⟨loss⟩ chunked \(TRL\) or liger \(Trainer\) would save up to [\d.]+ GiB: the loss", note
    )


def test_no_option_is_named_that_the_next_plan_would_refuse() -> None:
    (note,) = _on_loss(**ON_4090S, tp="auto")
    assert note.startswith("a fused (chunked) cross-entropy would save up to ")
    assert note.endswith("; ⟨loss⟩ is not modelled with ⟨tp⟩")
    with pytest.raises(InputError, match="not modelled with"):
        zerokit.plan(**ON_4090S, tp="auto", loss="chunked")
    assert not _on_loss(**ON_4090S, loss="chunked")


@pytest.mark.parametrize("loss", ["chunked", "liger", "cut"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_bound_that_a_search_drops_strategies_by_holds_with_each_loss(loss: str, method: str) -> None:
    """Without the loss it is low, and must not be without the layers' own memory too."""
    job = {"model": "llama-3.1-8b", "gpus": 8, "gpu": "h200", "seq_len": 4096, "method": method, "loss": loss}
    for zero, checkpointing in ((1, "none"), (3, "full")):
        result = zerokit.plan(**job, zero=zero, checkpointing=checkpointing, micro_batch=4)
        request = resolve({name: str(value) for name, value in job.items()}).request
        chosen = result.chosen.candidate
        assert request.least_vram is not None
        least = request.least_vram(result.chosen.job, chosen.strategy, result.cluster)
        assert 0.3 * chosen.memory.min_vram_bytes < least <= chosen.memory.min_vram_bytes
