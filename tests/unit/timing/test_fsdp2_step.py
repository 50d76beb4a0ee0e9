"""Step times under FSDP2 beside those of the library's own operators, as rehearsals of it play them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy
from zerokit.planner.request import resolve
from zerokit.search.plan import make_space
from zerokit.timing.constants import Calibration
from zerokit.timing.step_time import TimeModel

HOST = Calibration(host_factor=0.88)
REHEARSED = {
    ("llama-3.2-1b", 2, 2048, 4, 1, "none", 0): 0.1798,
    ("llama-3.2-1b", 2, 1024, 1, 1, "full", 0): 0.1169,
    ("llama-3.1-8b", 4, 4096, 1, 1, "full", 0): 0.6104,
    ("llama-3.2-3b", 4, 2048, 1, 4, "none", 0): 0.5718,
    ("qwen2.5-1.5b", 2, 2048, 2, 1, "none", 16): 0.211,
}
"""(model, H200s, tokens, micro-batch, accumulation, checkpointing, rank of LoRA) -> seconds of a step of
``tests/rehearsal/scripts/fully_sharded.py --accelerate`` (torch 2.13, Accelerate 1.15), rehearsed with all
layers. The widths from which the host's constants come are not among them."""


def model_of(name: str, gpus: int, tokens: int, sequences: int, rank: int = 0) -> TimeModel:
    options = {"model": name, "gpus": gpus, "gpu": "h200", "seq_len": tokens, "network": "100Gb/s",
               "global_batch": sequences}  # fmt: skip
    if rank:
        options |= {"method": "lora", "lora_rank": rank, "lora_dropout": 0.0}
    return make_space(replace(resolve(options).request, calibration=HOST))[0].timing


def sharded(ranks: int, **settings: object) -> Strategy:
    return Strategy(settings=Fsdp2Settings(precision="bf16", **settings), data_parallel=ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", REHEARSED, ids=str)
def test_a_step_takes_what_its_operators_take(case: tuple[str, int, int, int, int, str, int]) -> None:
    name, ranks, tokens, micro, accumulation, checkpointing, rank = case
    model = model_of(name, ranks, tokens, ranks * micro * accumulation, rank)
    strategy = sharded(ranks, micro_batch=micro, gradient_accumulation=accumulation)
    told = model.estimate(replace(strategy, checkpointing=checkpointing))
    assert told.step_seconds == pytest.approx(REHEARSED[case], rel=0.15)
    assert sum(told.parts.values()) == pytest.approx(told.step_seconds)


def test_replicas_send_less_between_nodes_and_gathered_weights_less_at_all() -> None:
    model = model_of("llama-3.1-8b", 16, 4096, 16)
    ways = {"all": {}, "nodes": {"replicas": 2}, "kept": {"reshard_after_forward": False}}
    seconds = {name: model.estimate(sharded(16, **way)).step_seconds for name, way in ways.items()}
    assert max(seconds["nodes"], seconds["kept"]) < seconds["all"]
