"""How often ZeRO-3's host gathers, beside what real DeepSpeed 0.19.8 did in rehearsals on two ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zerokit.catalog import gpus
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings, ZeroSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.timing.constants import HUGGING_FACE, Calibration
from zerokit.timing.host_speed import of_slowest_usually
from zerokit.timing.step_time import TimeModel
from zerokit.timing.zero_3_host import Zero3Order

ZERO_3 = replace(DEFAULT_ZERO, stage=3)


def model(
    family: str, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool = True
) -> ModelShape:
    config = {
        "model_type": family, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "tie_word_embeddings": tied, "head_dim": 128 if family == "qwen3" else hidden // heads,
    }  # fmt: skip
    return from_config(config, name=family)


LLAMA_1B = model("llama", 2048, 8192, 16, 32, 8, 128256)
LLAMA_3B = model("llama", 3072, 8192, 28, 24, 8, 128256)
LLAMA_8B = model("llama", 4096, 14336, 32, 32, 8, 128256, tied=False)
QWEN2 = model("qwen2", 1536, 8960, 28, 12, 2, 151936)
QWEN2_7B = model("qwen2", 3584, 18944, 28, 28, 4, 152064, tied=False)
QWEN3 = model("qwen3", 1024, 3072, 28, 16, 8, 151936)


def auto(shape: ModelShape) -> ZeroSettings:
    """Sizes as Transformers fills them in where a file says "auto" (integrations/deepspeed.py, 5.17)."""
    square = shape.hidden * shape.hidden
    return replace(
        ZERO_3, reduce_bucket_size=square, prefetch_bucket_size=int(0.9 * square),
        param_persistence_threshold=10 * shape.hidden,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "zero", "forward", "backward", "reductions"),
    [
        (LLAMA_1B, ZERO_3, 29, 15, 3),
        (LLAMA_3B, ZERO_3, 110, 97, 7),
        (LLAMA_8B, ZERO_3, 125, 117, 17),
        (QWEN2, ZERO_3, 43, 37, 4),
        (QWEN2_7B, ZERO_3, 90, 79, 16),
        (QWEN3, ZERO_3, 10, 0, 2),
        (LLAMA_1B, auto(LLAMA_1B), 91, 19, 130),
        (LLAMA_3B, auto(LLAMA_3B), 143, 110, 226),
        (LLAMA_8B, auto(LLAMA_8B), 163, 150, 259),
        (QWEN2, auto(QWEN2), 143, 59, 226),
    ],
)
def test_gathers_and_reductions_are_about_as_many_as_deepspeed_makes(
    shape: ModelShape, zero: ZeroSettings, forward: int, backward: int, reductions: int
) -> None:
    order = Zero3Order(shape, 1, None)
    assert order.gathers(zero) == pytest.approx((forward, backward), rel=0.25, abs=11)
    assert order.reductions(zero) == pytest.approx(reductions, rel=0.02, abs=2)


MISTRAL = model("mistral", 4096, 14336, 32, 32, 8, 32768, tied=False)
SMOLLM = model("llama", 2048, 8192, 24, 32, 32, 49152)


@pytest.mark.parametrize(
    ("shape", "zero", "rank", "forward", "backward", "collectives", "anew"),
    [
        (LLAMA_1B, ZERO_3, 16, 33, 5, 53, 112),
        (LLAMA_8B, ZERO_3, 16, 128, 89, 190, 224),
        (QWEN2_7B, auto(QWEN2_7B), 16, 155, 124, 295, 196),
        (SMOLLM, auto(SMOLLM), 8, 171, 72, 219, 168),
        (MISTRAL, auto(MISTRAL), 16, 166, 140, 324, 224),
    ],
)
def test_gathers_with_adapters_are_about_as_many_as_deepspeed_makes(
    shape: ModelShape, zero: ZeroSettings, rank: int, forward: int, backward: int, collectives: int, anew: int
) -> None:
    order = Zero3Order(shape, 1, Lora(rank=rank))
    counted = order.gathers(zero)
    assert counted == pytest.approx((forward, backward), rel=0.28, abs=11)
    # peft's adapters are in fp32: what gathers them with weights has two collectives
    assert counted[0] * order.dtypes(zero) == pytest.approx(collectives, rel=0.15, abs=5)
    assert Zero3Order(shape, 1, Lora(rank=rank), narrow=True).dtypes(zero) == 1
    # all linear modules of the layers, after a recomputation that is not reentrant
    assert order.anew(zero)[0] == anew


def test_only_checkpointing_that_is_not_reentrant_gathers_frozen_weights_anew() -> None:
    def waits(method: str, checkpointing: str, reentrant: bool) -> float:
        settings = DeepSpeedSettings(zero=ZERO_3, precision="bf16", micro_batch=8)
        cluster = Cluster(gpu=gpus.load("h200"), gpus=2, nodes=1)
        job = Job(
            seq_len=1024, global_batch=16, method=method, lora=Lora() if method == "lora" else None,
            use_reentrant_checkpointing=reentrant,
        )  # fmt: skip
        timing = TimeModel(LLAMA_1B, job, cluster, HUGGING_FACE, Calibration())
        strategy = Strategy(settings=settings, data_parallel=2, checkpointing=checkpointing)
        return timing.traffic.engine(strategy).waits(strategy)

    # rehearsed with the same loop: 121 collectives in backward, 9 where the checkpoints are reentrant
    assert waits("lora", "full", False) - waits("lora", "full", True) == 112
    assert waits("lora", "full", True) == waits("lora", "none", False)
    assert waits("full", "full", False) == waits("full", "none", False)


@pytest.mark.parametrize(
    ("shape", "adapters", "gathered"),
    [
        (LLAMA_1B, None, 33),
        (LLAMA_3B, None, 57),
        (QWEN2, None, 141),
        (QWEN3, None, 113),
        (LLAMA_1B, Lora(rank=16), 209),  # those of 8,192 inputs or outputs are above the threshold
        (LLAMA_8B, Lora(rank=16), 417),
    ],
)
def test_small_tensors_are_gathered_after_the_step(
    shape: ModelShape, adapters: Lora | None, gathered: int
) -> None:
    # the last norm belongs to no layer
    assert Zero3Order(shape, 1, adapters).persistent(ZERO_3) == gathered - 1


def test_several_ranks_pay_for_their_gathers_where_the_host_sets_the_pace() -> None:
    def forward_seconds(ranks: int) -> float:
        settings = DeepSpeedSettings(zero=ZERO_3, precision="bf16", micro_batch=1)
        cluster = Cluster(gpu=gpus.load("h200"), gpus=ranks, nodes=1)
        job = Job(seq_len=512, global_batch=ranks)
        timing = TimeModel(LLAMA_1B, job, cluster, HUGGING_FACE, Calibration(host_factor=1.0))
        return timing.work(Strategy(settings=settings, data_parallel=ranks)).forward_seconds

    # the rehearsed host needs 0.137 s for this forward pass on one rank and 0.148 s on two, which wait for
    # each other at each of its 29 gathers
    waiting = of_slowest_usually(1.0, 2, 0.148 / 29)
    assert forward_seconds(2) / forward_seconds(1) == pytest.approx(waiting * 0.148 / 0.137, abs=0.04)


def test_where_every_weight_is_persistent_there_is_a_step_time() -> None:
    zero = replace(ZERO_3, param_persistence_threshold=10**9)
    settings = DeepSpeedSettings(zero=zero, precision="bf16", micro_batch=1)
    job, cluster = Job(seq_len=512, global_batch=2), Cluster(gpu=gpus.load("h200"), gpus=2, nodes=1)
    timing = TimeModel(LLAMA_1B, job, cluster, HUGGING_FACE, Calibration(host_factor=1.0))
    assert timing.estimate(Strategy(settings=settings, data_parallel=2)).step_seconds > 0


def test_persistent_weights_cross_the_links_once_a_step() -> None:
    def link_seconds(threshold: int) -> float:
        zero = replace(ZERO_3, param_persistence_threshold=threshold)
        settings = DeepSpeedSettings(zero=zero, precision="bf16", micro_batch=8)
        cluster = Cluster(gpu=gpus.load("h200"), gpus=8, nodes=1)
        timing = TimeModel(LLAMA_8B, Job(seq_len=4096, global_batch=64), cluster, HUGGING_FACE, Calibration())
        flow = timing.traffic.engine(strategy := Strategy(settings=settings, data_parallel=8)).data_parallel(
            strategy
        )
        return flow.per_micro

    # two gathers and a reduction, of which the gathers of all persistent weights go
    assert link_seconds(10**12) == pytest.approx(link_seconds(100_000) / 3, rel=0.15)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_buckets_of_any_size_take_a_time_within_reason(stage: int, method: str) -> None:
    def seconds(**sizes: int) -> float:
        settings = DeepSpeedSettings(
            zero=replace(DEFAULT_ZERO, stage=stage, **sizes), precision="bf16", micro_batch=1
        )
        cluster = Cluster(gpu=gpus.load("h200"), gpus=8, nodes=1)
        job = Job(seq_len=4096, global_batch=8, method=method, lora=Lora() if method == "lora" else None)
        timing = TimeModel(LLAMA_8B, job, cluster, HUGGING_FACE, Calibration())
        return timing.estimate(Strategy(settings=settings, data_parallel=8)).step_seconds

    usual = seconds()
    # DeepSpeed takes it (runtime/zero/config.py:132), and gathers all at once (runtime/utils.py:1021)
    assert seconds(allgather_bucket_size=0) == usual
    # every tensor is reduced alone: less than 2,000 collectives
    assert usual < seconds(reduce_bucket_size=1) < usual + 1


def test_what_is_persistent_is_not_gathered_beyond_the_live_weights() -> None:
    zero = replace(ZERO_3, param_persistence_threshold=10**12, max_live_parameters=0)
    assert Zero3Order(LLAMA_8B, 1, None).gathers(zero) == (0, 0)
