"""How often ZeRO-3's host gathers, beside what real DeepSpeed 0.19.8 did in rehearsals on two ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zerokit.catalog import gpus
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.timing.constants import HUGGING_FACE, Calibration
from zerokit.timing.deepspeed_step import gathers, small_tensors
from zerokit.timing.step_time import TimeModel

ZERO_3 = replace(DEFAULT_ZERO, stage=3)


def model(
    family: str, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int
) -> ModelShape:
    config = {
        "model_type": family, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "tie_word_embeddings": True, "head_dim": 128 if family == "qwen3" else hidden // heads,
    }  # fmt: skip
    return from_config(config, name=family)


LLAMA_1B = model("llama", 2048, 8192, 16, 32, 8, 128256)
LLAMA_3B = model("llama", 3072, 8192, 28, 24, 8, 128256)
QWEN2 = model("qwen2", 1536, 8960, 28, 12, 2, 151936)
QWEN3 = model("qwen3", 1024, 3072, 28, 16, 8, 151936)


@pytest.mark.parametrize(
    ("shape", "forward", "backward"),
    [(LLAMA_1B, 29, 15), (LLAMA_3B, 110, 97), (QWEN2, 43, 31), (QWEN3, 10, 0)],
)
def test_gathers_are_about_as_many_as_deepspeed_makes(shape: ModelShape, forward: int, backward: int) -> None:
    found = gathers(shape, float(shape.parameters), ZERO_3)
    assert found[0] == pytest.approx(forward, rel=0.35, abs=6)
    assert found[1] == pytest.approx(backward, rel=0.6, abs=10)


@pytest.mark.parametrize(("shape", "gathered"), [(LLAMA_1B, 33), (LLAMA_3B, 57), (QWEN2, 141), (QWEN3, 113)])
def test_norms_and_biases_are_gathered_after_the_step(shape: ModelShape, gathered: int) -> None:
    assert small_tensors(shape) == gathered - 1  # the last norm belongs to no layer


def test_several_ranks_pay_for_their_gathers_where_the_host_sets_the_pace() -> None:
    def forward_seconds(ranks: int) -> float:
        settings = DeepSpeedSettings(zero=ZERO_3, precision="bf16", micro_batch=1)
        cluster = Cluster(gpu=gpus.load("h200"), gpus=ranks, nodes=1)
        job = Job(seq_len=512, global_batch=ranks)
        timing = TimeModel(LLAMA_1B, job, cluster, HUGGING_FACE, Calibration(host_factor=1.0))
        return timing.work(Strategy(settings=settings, data_parallel=ranks)).forward_seconds

    # the rehearsed host needs 0.137 s for this forward pass on one rank and 0.148 s on two
    assert forward_seconds(2) / forward_seconds(1) == pytest.approx(0.148 / 0.137, abs=0.04)
