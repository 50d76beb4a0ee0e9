"""cuBLAS's and cublasLt's workspaces in the replay, against H200s and PyTorch's defaults."""

from __future__ import annotations

import pytest

import zerokit
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.profile import ModelProfile, Parameter
from zerokit.memory.components import Component
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.model_states import beside_states

MIB = 1 << 20
LLAMA = (("q.weight", (64, 32)), ("norm.weight", (32,)))
QWEN = (*LLAMA, ("q.bias", (64,)))
GPT2 = (("c_attn.weight", (32, 96)), ("c_attn.bias", (96,)), ("ln.weight", (32,)), ("ln.bias", (32,)))
VISION = (("projection.weight", (64, 3, 16, 16)), ("projection.bias", (64,)), ("q.weight", (64, 32)))


@pytest.mark.parametrize(
    ("shapes", "stage", "checkpointing", "threads"),
    [
        (LLAMA, 2, "full", 0),
        (VISION, 2, "full", 0),  # cuDNN adds a convolution's bias
        # h200-deepspeed.jsonl, between steps: 1 MiB more in qwen2.5-0.5b.w1.z2.b2.s4096, 2 in
        # ….w1.z2.b8.s1024.ck, none in ….w1.z3.b2.s1024.g4
        (QWEN, 2, "none", 1),
        (QWEN, 2, "full", 2),
        (QWEN, 2, "reentrant", 2),
        (QWEN, 2, "selective", 1),
        (QWEN, 3, "full", 0),
        # gpt2.w2.z3.reuse0.ck (blind-released.jsonl): a Conv1D is torch's own at stage 3 too
        (GPT2, 3, "full", 2),
    ],
)
def test_products_with_a_bias_have_a_workspace_in_every_thread_that_makes_them(
    shapes: tuple[tuple[str, tuple[int, ...]], ...], stage: int, checkpointing: str, threads: int
) -> None:
    parameters = tuple(Parameter(name=name, shape=shape) for name, shape in shapes)
    profile = ModelProfile(
        name="x", family="x", head="causal", hf_config={}, parameters=parameters, traces={}
    )
    model = RankModel(
        profile=profile,
        parameters=parameters,
        trace=None,  # type: ignore[arg-type]
        checkpointing=checkpointing,
    )
    settings = from_config({"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}})
    assert beside_states(model, settings.zero.stage)[Component.CUBLAS_WORKSPACE] == 64 * MIB + threads * MIB


@pytest.mark.parametrize(
    ("gpu", "bytes_of_a_thread"),
    [
        ("h100-sxm-80gb", 32 * MIB),
        ("b200", 32 * MIB),
        # CUBLAS_WORKSPACE_CONFIG's default, ":4096:2:16:8": KiB and how many
        ("a100-80gb", (4096 * 2 + 16 * 8) * 1024),
        ("rtx-4090", (4096 * 2 + 16 * 8) * 1024),
        ("v100-32gb", (4096 * 2 + 16 * 8) * 1024),
    ],
)
@pytest.mark.parametrize(("training", "threads"), [(True, 2), (False, 1)])
def test_the_workspaces_are_those_of_the_gpu(
    gpu: str, bytes_of_a_thread: int, training: bool, threads: int
) -> None:
    """In training the script's thread multiplies and autograd's; Llama's products have no bias."""
    asked = zerokit.estimate(
        model="llama-3.2-1b", gpus=1, gpu=gpu, zero=0, micro_batch=1, seq_len=128, inference=not training
    )
    assert asked.worst_rank.components["cublas_workspace"] == threads * bytes_of_a_thread
