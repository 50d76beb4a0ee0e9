"""What an estimate's bytes are called, and how much of them is the loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.requests import Asked, analytic, request_for
from zerokit.catalog import gpus, models, profiles
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.components import Component, HostComponent, label
from zerokit.memory.estimate import estimate_traced
from zerokit.search.plan import make_plan

LOSS_BYTES_PER_LOGIT = 12
"""Live at once in backward (torch/nn/functional.py, cross_entropy, in fp32): the log-softmax kept
from forward, the gradient of the negative log-likelihood over it, and its own. Four bytes each; transformers'
ForCausalLMLoss makes the logits fp32."""


def strategy(
    stage: int, checkpointing: str = "none", offload: str = "none", micro_batch: int = 2
) -> Strategy:
    settings = DeepSpeedSettings(
        precision="bf16",
        micro_batch=micro_batch,
        zero=ZeroSettings(stage=stage, offload_optimizer=Offload(device=offload)),
    )
    return Strategy(settings=settings, data_parallel=4, checkpointing=checkpointing)


KINDS = [
    strategy(stage, checkpointing, micro_batch=16)
    for stage in (1, 2, 3)
    for checkpointing in ("none", "full")
]


def traced(model: str, kind: Strategy, job: Job | None = None) -> MemoryEstimate:
    profile = profiles.load(model)
    assert profile is not None
    cluster = Cluster(gpu=gpus.load("h200"), gpus=kind.world_size)
    return estimate_traced(profile, job or Job(seq_len=1024), kind, cluster)


@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "qwen2.5-1.5b"], ids=["own head", "head tied to the embedding"]
)
@pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: f"stage {kind.settings.zero.stage}, {kind.checkpointing}"
)
def test_the_loss_is_what_cross_entropy_holds_of_each_logit(model: str, kind: Strategy) -> None:
    rank = traced(model, kind).worst
    assert rank.peak_phase == "backward"
    logits = kind.settings.micro_batch * 1024 * int(models.load(model).hf_config["vocab_size"])
    assert math.isclose(rank.components["loss"], LOSS_BYTES_PER_LOGIT * logits, rel_tol=0.01)
    assert sum(rank.components.values()) == rank.peak_allocated_bytes


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_peak_without_the_loss_has_none(stage: int) -> None:
    """One short sequence: the optimizer's step or its setting up is highest."""
    rank = traced("llama-3.1-8b", strategy(stage, micro_batch=1), Job(seq_len=128)).worst
    assert rank.peak_phase in ("init", "step")
    assert "loss" not in rank.components


def test_the_stage_of_a_pipeline_without_a_head_has_no_loss() -> None:
    kind = replace(strategy(1), pipeline_parallel=2)
    ranks = traced("llama-3.1-8b", kind).ranks
    first, last = (ranks[index].phase_components["forward"] for index in (0, -1))
    assert "loss" not in first and last["loss"] > 0


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_the_traced_and_the_closed_form_have_the_same_words(stage: int, offload: str) -> None:
    entry = models.load("llama-3.1-8b")
    shape = from_config(entry.hf_config, name=entry.name, parameters=entry.parameters)
    kind = strategy(stage, "full", offload, micro_batch=16)
    exact = traced("llama-3.1-8b", kind)
    closed = analytic(shape)(Job(seq_len=1024), kind, Cluster(gpu=gpus.load("h200"), gpus=4))
    for found in (exact, closed):
        assert set(found.worst.components) <= {component.value for component in Component}
        assert set(found.host_components) <= {component.value for component in HostComponent}
    for name in ("parameters", "loss"):
        assert math.isclose(closed.worst.components[name], exact.worst.components[name], rel_tol=0.01)


@pytest.mark.parametrize("traced_model", [True, False], ids=["traced", "closed form"])
def test_a_large_loss_is_named_whichever_way_it_was_counted(traced_model: bool) -> None:
    request = request_for(model="llama-3.2-1b", count=2)
    if traced_model:
        profile = profiles.load("llama-3.2-1b")
        assert profile is not None
        request = replace(
            request,
            memory=Asked(lambda job, strategy, cluster: estimate_traced(profile, job, strategy, cluster)),
        )
    assert any("the loss over a vocabulary of 128,256 takes" in line for line in make_plan(request).advice)


def test_names_for_people() -> None:
    assert label("gradient_bucket") == "gradient bucket"
    assert label("kv_cache") == "KV cache"
    assert label("what an old report says") == "what an old report says"
    assert all(component.meaning for component in (*Component, *HostComponent))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_the_closed_form_calls_frozen_weights_what_a_trace_does(method: str, stage: int) -> None:
    job = Job(seq_len=1024, method=method, lora=None if method == "full" else Lora())
    kind, request = strategy(stage), request_for("llama-3.1-8b", "h200", 4)
    closed = request.memory(job, kind, request.cluster).worst.components
    if stage == 3 or method == "full":
        assert Component.FROZEN_PARAMETERS.value not in closed
        return
    followed = traced("llama-3.1-8b", kind, job).worst.components
    for part in (Component.FROZEN_PARAMETERS.value, Component.PARAMETERS.value):
        assert closed[part] == pytest.approx(followed[part], rel=0.02)
