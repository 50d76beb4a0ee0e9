"""Pins are kept or refused, and degrees divide what they must."""

from __future__ import annotations

import pytest

from tests.support.requests import request_for
from zerokit.domain.job import Job
from zerokit.errors import InputError
from zerokit.search.plan import make_plan
from zerokit.search.space import Layout, Pins, divisors, layout_violation


def test_pins_are_kept() -> None:
    pins = Pins(
        zero_stage=2,
        offload_optimizer="cpu",
        offload_param="none",
        checkpointing="full",
        micro_batch=2,
        tensor_parallel=2,
        sequence_parallel=1,
        overlap_comm=True,
        reduce_bucket_size=123_456_789,
    )
    strategy = make_plan(request_for(pins=pins)).chosen.strategy
    zero = strategy.settings.zero
    assert (zero.stage, zero.offload_optimizer.device, zero.offload_param.device) == (2, "cpu", "none")
    assert (strategy.tensor_parallel, strategy.settings.micro_batch, strategy.checkpointing) == (2, 2, "full")
    assert (zero.overlap_comm, zero.reduce_bucket_size) == (True, 123_456_789)


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (Pins(tensor_parallel=3), "tp 3"),
        (Pins(zero_stage=2, offload_param="cpu"), "stage 3"),
        (Pins(zero_stage=0, offload_optimizer="cpu"), "stage"),
        (Pins(tensor_parallel=8, sequence_parallel=4), "does not divide"),
        (Pins(pipeline_parallel=2, pipeline_module=True, zero_stage=3), "pipeline"),
    ],
)
def test_pins_that_cannot_be_are_refused_with_the_fix(pins: Pins, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_plan(request_for(pins=pins))


@pytest.mark.parametrize(
    ("model", "degree", "words"),
    [
        ("deepseek-v2-lite", 2, "one head size"),  # values of 128, queries of 192
        ("qwen2.5-14b", 5, "key-value heads"),  # 40 heads, of which 8 of keys and values
        ("llama-3.1-8b", 16, None),  # 32 and 8
    ],
)
def test_ulysses_takes_heads_that_it_can_divide(model: str, degree: int, words: str | None) -> None:
    """deepspeed/runtime/sequence_parallel/ulysses_sp.py:149 and 161."""
    broken = layout_violation(
        Layout(data=1, tensor=1, pipeline=1, sequence=degree),
        request_for(model, "h200", degree, job=Job(seq_len=4000), pins=Pins(sequence_parallel=degree)),
    )
    assert (broken is None) if words is None else (broken is not None and words in broken.message)


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
    assert divisors(49) == [1, 7, 49]
