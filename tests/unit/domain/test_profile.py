"""Which trace of a model a job and strategy need."""

from __future__ import annotations

import itertools

import pytest

from zerokit.catalog import profiles
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.job import Job, Lora
from zerokit.domain.profile import Variant, variants_of
from zerokit.domain.strategy import Strategy
from zerokit.values import replace


def strategy(
    stage: int = 2, checkpointing: str = "none", tensor: int = 1, autocast: str | None = None
) -> Strategy:
    settings = DeepSpeedSettings(
        precision="fp32" if autocast else "bf16", torch_autocast=autocast, zero=ZeroSettings(stage=stage)
    )
    return Strategy(settings=settings, data_parallel=2, tensor_parallel=tensor, checkpointing=checkpointing)


LORA = Job(method="lora", lora=Lora(rank=16))
FSDP2 = Strategy(settings=Fsdp2Settings(precision="bf16"), data_parallel=2)


@pytest.mark.parametrize(
    ("job", "kind", "key"),
    [
        (Job(), strategy(), "sdpa/16/none"),
        (Job(attention="flash_attention_2"), strategy(checkpointing="full"), "sdpa/16/full"),
        (Job(use_reentrant_checkpointing=True), strategy(checkpointing="full"), "sdpa/16/reentrant"),
        (Job(), strategy(stage=3, tensor=2), "sdpa/16/none/tp2"),
        (LORA, strategy(), "sdpa/16/none/lora16:all-linear"),
        (LORA, strategy(stage=3), "sdpa/16/none/lora16:all-linear/zero3"),
        (LORA, FSDP2, "sdpa/16/none/lora16:all-linear"),
        (replace(LORA, trainer="trl"), FSDP2, "sdpa/16/none/lora16:all-linear"),
        (Job(method="qlora", lora=Lora()), strategy(), "sdpa/16/none/lora16:all-linear/nf4"),
        (Job(), strategy(stage=3, autocast="bfloat16"), "sdpa/32/none/zero3/autocast"),
    ],
)
def test_the_variant_of_a_training_job(job: Job, kind: Strategy, key: str) -> None:
    """The keys under which the stored profiles have kept these traces since their first format."""
    assert [variant.key for variant in variants_of(job, kind)] == [key]


def test_inference_needs_a_trace_of_each_pass() -> None:
    job = Job(inference=True, quantization="int4")
    assert [v.key for v in variants_of(job, strategy(0), "causal")] == [
        "sdpa/16/none/prefill/int4",
        "sdpa/16/none/decode/int4",
    ]
    assert [v.phase for v in variants_of(job, strategy(0), "mlm")] == ["prefill"]


def test_a_committed_profile_has_what_the_catalogue_promises() -> None:
    profile = profiles.load("llama-3.2-1b")
    assert profile is not None
    for job, stage, checkpointing in itertools.product((Job(), LORA), (2, 3), ("none", "full")):
        assert profile.has(Variant.of(job, strategy(stage, checkpointing)))
    assert not profile.has(Variant.of(Job(attention="eager"), strategy()))


def test_variants_that_differ_have_keys_that_differ() -> None:
    changes = [
        {}, {"attention": "eager"}, {"precision": "32"}, {"checkpointing": "full"}, {"padding": True},
        {"lora_rank": 8}, {"lora_rank": 8, "lora_targets": ("q_proj",)}, {"tensor_parallel": 2},
        {"zero3_linear": True}, {"quantized": True}, {"phase": "decode"}, {"quantization": "int8"},
        {"autocast": True}, {"wide_ends": True}, {"fused_adapters": True}, {"input_grads": True},
    ]  # fmt: skip
    keys = [Variant(**change).key for change in changes]  # type: ignore[arg-type]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        (Variant(), "training, sdpa attention, 16 bits"),
        (
            Variant(tensor_parallel=2, phase="prefill"),
            "prefill, sdpa attention, 16 bits, one of 2 tensor-parallel ranks",
        ),
        (
            Variant(lora_rank=8, quantized=True, checkpointing="reentrant"),
            "training, sdpa attention, 16 bits, full checkpointing (reentrant), LoRA of rank 8, "
            "base weights in 4 bits",
        ),
    ],
)
def test_a_variant_is_told_in_words(variant: Variant, words: str) -> None:
    assert variant.words == words
