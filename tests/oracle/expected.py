"""What the memory model says of a run on CPU ranks, for the oracle to compare with DeepSpeed itself.

The model's activations are traced with the CPU's own operators (on CUDA some kernels allocate otherwise), and
the cuBLAS workspace is left out: all else is the prediction as it stands.
"""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from dataclasses import replace
from typing import Any

import pytest

from zerokit.catalog import gpus
from zerokit.domain.client_optimizers import with_optimizer
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.hardware import HOPPER_CUBLAS_WORKSPACE_BYTES, Cluster
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile, Variant
from zerokit.domain.strategy import Strategy
from zerokit.memory.estimate import estimate_traced
from zerokit.memory.rank_model import highest, rank_model
from zerokit.memory.replay.model_states import CUBLAS_THREADS, on_device, partition, share_bytes
from zerokit.memory.replay.step import _Replay, rank_bytes
from zerokit.memory.sequence_parallel import exchange_of, with_exchanges

FOREACH = {"lr": 1e-4, "torch_adam": True, "foreach": True}
"""torch's AdamW as it runs on GPUs; on CPU tensors its default is another loop, with a second temporary."""

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 5, "n_head": 4, "vocab_size": 999, "n_positions": 128}
SMALL = {"reduce_bucket_size": 40_000}
GATHER = SMALL | {"stage3_param_persistence_threshold": 100, "stage3_prefetch_bucket_size": 20_000}


def case(
    name: str,
    zero: dict[str, Any],
    *,
    ranks: int = 2,
    accumulation: int = 1,
    lora: dict[str, Any] | None = None,
    checkpointing: str = "none",
    model: dict[str, Any] = LLAMA,
    fp32: bool = False,
    micro_batch: int = 2,
    seq_len: int = 16,
    sequence_parallel: int = 1,
    groups: tuple[str, ...] = (),
    **config: Any,
) -> dict[str, Any]:
    """One run of ``ranks.py``; ``groups``: see ``Job.optimizer_groups``; ``config``: further keys of the
    DeepSpeed JSON."""
    return {
        "name": name,
        "hf_config": model,
        "precision": "32" if fp32 else "16",
        "ranks": ranks,
        "gradient_accumulation": accumulation,
        "micro_batch": micro_batch,
        "seq_len": seq_len,
        "sequence_parallel": sequence_parallel,
        "lora": lora,
        "groups": groups,
        "checkpointing": checkpointing,
        "deepspeed_config": {
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": not fp32},
            "optimizer": {"type": "AdamW", "params": FOREACH},
            "zero_optimization": zero,
            "steps_per_print": 1_000_000,
        }
        | config,
    }


@functools.cache
def _profile(key: str) -> tuple[ModelProfile, Variant]:
    import zerokit.trace.recording.record as record
    from zerokit.trace.profile import profile_from_config

    hf_config, precision, checkpointing, lora, stage3, autocast, attention = json.loads(key)
    variant = Variant(
        attention=attention,
        precision=precision,
        checkpointing=checkpointing,
        lora_rank=lora["rank"] if lora else 0,
        lora_targets=tuple(lora["targets"]) if lora else ("all-linear",),
        zero3_linear=(bool(lora) or autocast) and stage3,
        autocast=autocast,
    )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(record, "cuda_kernels", contextlib.nullcontext)
        patch.setattr(record, "cuda_lists", contextlib.nullcontext)
        return profile_from_config(hf_config, [variant], name="oracle", head="causal"), variant


def expected(run: dict[str, Any], rank: int) -> dict[str, Any]:
    """Predicted bytes of a rank: ``init``, ``step``, ``between_steps``, phases of the first and last
    micro-step; elements trained, of the largest parameter, of those that touch the rank's partition, and
    those whose optimizer stays on the GPU under a partial offload; bytes of a ZeRO-3 shard of all."""
    stage = run["deepspeed_config"]["zero_optimization"]["stage"]
    facts = [run["hf_config"], run["precision"], run["checkpointing"], run["lora"], stage == 3]
    facts.append("torch_autocast" in run["deepspeed_config"])
    facts.append("sdpa" if run["sequence_parallel"] > 1 else "eager")
    profile, variant = _profile(json.dumps(facts))
    trace = profile.trace(variant, run["seq_len"])
    assert trace is not None
    settings = from_config(run["deepspeed_config"])
    if run.get("optim"):
        settings = with_optimizer(settings, run["optim"])
    degree = run["sequence_parallel"]
    if degree > 1:
        exchange = exchange_of(profile, degree, settings)
        assert exchange is not None
        trace = with_exchanges(trace, exchange, run["checkpointing"] != "none")
        settings = replace(settings, communication_data_type="fp32")  # gloo is not NCCL 2.27.3
    model = rank_model(profile, variant, trace, optimizer_groups=tuple(run["groups"]))
    own = rank_bytes(model, settings, run["ranks"], rank)
    part = partition(model, rank, run["ranks"], round_robin=settings.zero.round_robin_gradients)
    first = own.micro_steps[0]
    if stage == 3 and settings.gradient_accumulation > 1:
        # rank_bytes has the last alone, which holds no less; the first offloads nothing
        first = _Replay(model, settings, run["ranks"], rank).micro_step(False, False)
    timeline = trace.timeline(run["micro_batch"], run["seq_len"] // degree)
    workspace = own.persistent.components["cublas_workspace"]
    micro_steps = []
    for micro in (first, own.micro_steps[-1]):
        if micro.forward is None:
            forward = micro.start + timeline.forward_peak
            level, activations = micro.start + timeline.after_forward, timeline.gradients
        else:
            forward = highest(timeline.forward, micro.forward)
            level, activations = micro.forward.after[-1] + timeline.after_forward, timeline.backward
        figures = {
            "forward": forward,
            "after_forward": level,
            "backward": max(highest(activations, micro.backward), micro.at_end(activations)),
            "after_backward": micro.after,
        }
        micro_steps.append({name: round(size) - workspace for name, size in figures.items()})
    return {
        "init": own.init_peak,
        "micro_steps": micro_steps,
        "step": own.step_peak - workspace,
        # hpZ's copy goes at the end of a step (stage3.py:2846) and comes again layer by layer in forward
        "between_steps": own.micro_steps[0].start
        - workspace
        - own.persistent.components.get("second_copy", 0),
        "second_copy": own.persistent.components.get("second_copy", 0),
        "parameters": sum(p.numel for p in model.trainable),
        "largest": model.largest,
        "copied": settings.parameter_bytes * max(model.sizes) // run["ranks"],
        "on_device": sum(on_device(model, settings.zero, run["ranks"])),
        "shares": share_bytes(model, run["ranks"], settings.parameter_bytes),
        "touched": part.whole,
    }


def expected_stage(run: dict[str, Any], stage: int) -> dict[str, Any]:
    """Predicted peak of one pipeline stage in bytes; one rank a stage."""
    profile, variant = _profile(
        json.dumps([run["hf_config"], run["precision"], run["checkpointing"], None, False, False, "eager"])
    )
    assert profile.has(variant)
    settings = from_config(run["deepspeed_config"])
    strategy = Strategy(settings=settings, data_parallel=1, pipeline_parallel=run["pipeline"])
    cluster = Cluster(gpu=gpus.load("h200"), gpus=run["pipeline"], nodes=1)
    job = Job(seq_len=run["seq_len"], attention="eager")
    found = estimate_traced(profile, job, strategy, cluster, every_rank=True)
    workspace = CUBLAS_THREADS * HOPPER_CUBLAS_WORKSPACE_BYTES
    rank = found.ranks[stage]
    assert rank.first == rank.last == stage
    return {"peak": max(rank.phases[p] for p in ("forward", "backward", "step")) - workspace}
