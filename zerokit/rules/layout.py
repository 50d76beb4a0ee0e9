"""Rules about how a model may be divided over GPUs: degrees against heads, layers, sequence and nodes.

They need the model, so only the planner asks them of every layout; where it is not known they hold.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from zerokit.domain.model_shape import ModelShape
from zerokit.domain.tensor_plans import MODEL_TYPES
from zerokit.rules.types import Rule, Setup

_AUTOTP = "tensor_parallel.autotp_size"
_PLANNED = "tp_size"
_PLANNED_SOURCE = "transformers/distributed/tensor_parallel.py"
_ULYSSES = "sequence_parallel"
_RING = "context_parallel"
_RING_SOURCE = "accelerate/big_modeling.py"
_ULYSSES_SOURCE = "deepspeed/runtime/sequence_parallel/ulysses_sp.py"


def _degrees(number: int) -> str:
    """``1, 2, 4 or 8``: all divisors."""
    *most, last = (str(degree) for degree in range(1, number + 1) if number % degree == 0)
    return f"{', '.join(most)} or {last}" if most else last


def _undivided(setup: Setup, of: Callable[[ModelShape], int]) -> bool | Mapping[str, Any]:
    degree, model = setup.tensor_parallel, setup.model
    if model is None or of(model) % degree == 0:
        return False
    return {"degree": degree, "heads": of(model), "degrees": _degrees(math.gcd(model.heads, model.kv_heads))}


def _unequal_parts(setup: Setup) -> bool | Mapping[str, Any]:
    degree, model = setup.planned_parts, setup.model
    sizes = () if model is None else (model.heads, model.kv_heads, model.vocab)
    named = dict(zip(("heads", "key_value_heads", "rows"), sizes, strict=False))
    return any(size % degree for size in sizes) and {"degree": degree, **named}


def _sequence_undivided(setup: Setup) -> bool | Mapping[str, Any]:
    degree, model, job = setup.sequence_parallel, setup.model, setup.job
    if degree == 1 or model is None or job is None:
        return False
    if model.heads % degree == 0 and job.seq_len % degree == 0:
        return False
    return {"degree": degree, "heads": model.heads, "tokens": f"{job.seq_len:,}"}


def _sequence_key_value_heads(setup: Setup) -> bool | Mapping[str, Any]:
    degree, model = setup.sequence_parallel, setup.model
    if degree == 1 or model is None or model.kv_heads % degree == 0 or degree % model.kv_heads == 0:
        return False
    return {"degree": degree, "heads": model.kv_heads}


_rule = functools.partial(Rule, scope="layout")

LAYOUT_RULES: tuple[Rule, ...] = (
    _rule(
        id="tensor-parallel-divides-heads",
        unmodelled=True,
        silent=True,
        source="deepspeed/module_inject/tp_shard.py:122",
        key=_AUTOTP,
        message="tensor parallel {degree} does not divide the model's {heads} attention heads: ranks get unequal "
        "shares, which are not modelled",
        fix="use {degrees}",
        broken=lambda s: _undivided(s, lambda model: model.heads),
    ),
    _rule(
        id="tensor-parallel-beyond-heads",
        scope="strategy",
        silent=True,
        source="deepspeed/runtime/engine.py:1048",
        key=_AUTOTP,
        message="tensor parallel {degree} is more than the model's {heads} key-value heads: ranks beyond them hold no "
        "attention and the work does not scale (DeepSpeed only warns)",
        fix="use at most {heads}",
        broken=lambda s: (
            s.key_value_heads is not None
            and s.tensor_parallel > s.key_value_heads
            and {"degree": s.tensor_parallel, "heads": s.key_value_heads}
        ),
    ),
    _rule(
        id="tensor-parallel-divides-key-value-heads",
        unmodelled=True,
        silent=True,
        source="deepspeed/module_inject/tp_shard.py:122",
        key=_AUTOTP,
        message="tensor parallel {degree} does not divide the model's {heads} key-value heads: ranks get unequal "
        "shares, which are not modelled",
        fix="use {degrees}",
        broken=lambda s: _undivided(s, lambda model: model.kv_heads),
    ),
    _rule(
        id="tensor-parallel-with-adapters",
        silent=True,
        source="deepspeed/module_inject/auto_tp.py:405",
        key=_AUTOTP,
        message="tensor parallelism replaces linear layers by name and does not know peft's adapters",
        fix="use data or sequence parallelism, or train all weights",
        broken=lambda s: s.tensor_parallel > 1 and s.job is not None and s.job.method != "full",
    ),
    _rule(
        id="tensor-parallel-with-fused-experts",
        silent=True,
        source="deepspeed/module_inject/auto_tp.py:355",
        key=_AUTOTP,
        message="Transformers keeps all experts of a layer in one tensor, which tensor parallelism does not divide",
        fix="use data or sequence parallelism",
        broken=lambda s: s.tensor_parallel > 1 and s.model is not None and s.model.experts > 1,
    ),
    _rule(
        id="tensor-parallel-across-nodes",
        severity="warning",
        silent=True,
        source="deepspeed/module_inject/layers.py:928",
        key=_AUTOTP,
        message="tensor parallel {degree} is more than a node's GPUs ({per_node}): the all-reduces of every layer "
        "cross the network",
        fix="use at most {per_node}",
        broken=lambda s: (
            s.gpus_per_node is not None
            and s.tensor_parallel > s.gpus_per_node
            and {"degree": s.tensor_parallel, "per_node": s.gpus_per_node}
        ),
    ),
    _rule(
        id="sequence-parallel-needs-causal-model",
        silent=True,
        source=f"{_ULYSSES_SOURCE}:414",
        key=_ULYSSES,
        message="sequence parallelism (Ulysses) divides the sequences on which a causal language model is trained",
        fix="leave it at 1",
        broken=lambda s: (
            s.sequence_parallel > 1
            and s.model is not None
            and (s.model.head != "causal" or (s.job is not None and s.job.inference))
        ),
    ),
    _rule(
        id="sequence-parallel-with-eager-attention",
        source=f"{_ULYSSES_SOURCE}:468",
        key=_ULYSSES,
        message="sequence parallelism (Ulysses) does not run with eager attention",
        fix="use sdpa or flash_attention_2",
        broken=lambda s: s.sequence_parallel > 1 and s.job is not None and s.job.attention == "eager",
    ),
    _rule(
        id="sequence-parallel-divides-heads-and-sequence",
        source=f"{_ULYSSES_SOURCE}:147",
        key=_ULYSSES,
        message="sequence parallel {degree} does not divide both the model's {heads} attention heads and the "
        "{tokens} tokens of a sequence",
        fix="change the degree or the sequence length",
        broken=_sequence_undivided,
    ),
    _rule(
        id="sequence-parallel-and-key-value-heads",
        source=f"{_ULYSSES_SOURCE}:149",
        key=_ULYSSES,
        message="sequence parallel {degree} and the model's {heads} key-value heads: neither divides the other",
        fix="use a divisor or a multiple of {heads}",
        broken=_sequence_key_value_heads,
    ),
    _rule(
        id="sequence-parallel-with-latent-attention",
        source=f"{_ULYSSES_SOURCE}:161",
        key=_ULYSSES,
        message="sequence parallelism (Ulysses) takes queries, keys and values of one head size; this model's latent "
        "attention has two",
        fix="leave it at 1",
        broken=lambda s: s.sequence_parallel > 1 and s.model is not None and s.model.latent_attention,
    ),
    _rule(
        id="sequence-with-tensor-or-pipeline-parallel",
        silent=True,
        source="accelerate/parallelism_config.py:220",
        key=_ULYSSES,
        message="accelerate's sequence parallelism under DeepSpeed cannot be joined with tensor or pipeline "
        "parallelism",
        fix="leave one of them at 1",
        broken=lambda s: s.sequence_parallel > 1 and s.tensor_parallel * s.pipeline_parallel > 1,
    ),
    _rule(
        id="context-parallel-needs-causal-model",
        silent=True,
        source=f"{_RING_SOURCE}:803",
        key=_RING,
        message="context parallelism takes the causal mask of a language model alone, and only trains it",
        fix="leave it at 1",
        broken=lambda s: s.context_parallel > 1 and s.model is not None and s.model.head != "causal",
    ),
    _rule(
        id="context-parallel-attention",
        source="transformers/trainer.py:2415",
        key=_RING,
        message="context parallelism divides the SDPA kernel's work: {attention} attention is refused",
        fix="use sdpa",
        broken=lambda s: (
            s.context_parallel > 1
            and s.job is not None
            and s.job.attention != "sdpa"
            and {"attention": s.job.attention}
        ),
    ),
    _rule(
        id="context-parallel-other-masks",
        silent=True,
        source=f"{_RING_SOURCE}:819",
        key=_RING,
        message="context parallelism knows full causal attention alone: Accelerate refuses the model's other "
        "layers (sliding window, chunks, recurrence)",
        fix="leave it at 1, or take a model with full attention",
        broken=lambda s: s.context_parallel > 1 and s.model is not None and not s.model.attends_fully,
    ),
    _rule(
        id="context-parallel-named-attention",
        silent=True,
        source=f"{_RING_SOURCE}:835",
        key=_RING,
        message="context parallelism by Accelerate drops the mask of modules named self_attn, which this model "
        "has not: the first step fails",
        fix="leave it at 1",
        broken=lambda s: (
            s.context_parallel > 1
            and s.model is not None
            and not any(module.path.startswith("self_attn.") for module in s.model.linear_modules)
        ),
    ),
    _rule(
        id="context-parallel-with-latent-attention",
        unmodelled=True,
        silent=True,
        source="torch/distributed/tensor/experimental/_context_parallel/_attention.py:366",
        key=_RING,
        message="context parallelism of latent attention, whose keys and values differ in size, is not modelled",
        fix="leave it at 1",
        broken=lambda s: s.context_parallel > 1 and s.model is not None and s.model.latent_attention,
    ),
    _rule(
        id="context-parallel-divides-sequence",
        unmodelled=True,
        source="torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py:475",
        key=_RING,
        message="context parallel {degree}: {tokens} tokens of a sequence are no multiple of {chunks}, so that "
        "ranks get unequal work, which is not modelled",
        fix="change the degree or the sequence length",
        broken=lambda s: (
            s.context_parallel > 1
            and s.job is not None
            and s.job.seq_len % (2 * s.context_parallel) > 0
            and {
                "degree": s.context_parallel,
                "tokens": f"{s.job.seq_len:,}",
                "chunks": 2 * s.context_parallel,
            }
        ),
    ),
    _rule(
        id="planned-parts-with-context-parallel",
        unmodelled=True,
        source="transformers/distributed/configuration_utils.py:90",
        key=_PLANNED,
        message="Transformers' DistributedConfig has no context parallelism beside tensor parallelism",
        fix="leave one of them at 1",
        broken=lambda s: s.planned_parts > 1 and s.context_parallel > 1,
    ),
    _rule(
        id="planned-parts-of-the-model",
        source="transformers/distributed/mixin.py:225",
        key=_PLANNED,
        message="Transformers has no tensor parallel plan of linear layers alone for a {family} model",
        fix="leave it at 1, or use another engine",
        broken=lambda s: (
            s.planned_parts > 1
            and s.model is not None
            and (s.model.head != "causal" or s.model.family not in MODEL_TYPES)
            and {"family": s.model.family}
        ),
    ),
    _rule(
        id="planned-parts-divide-the-model",
        unmodelled=True,
        source=f"{_PLANNED_SOURCE}:145",
        key=_PLANNED,
        message="tensor parallel {degree} does not divide the model's {heads} attention heads, {key_value_heads} "
        "key-value heads and {rows} rows of the embedding, so that ranks get unequal shares or fail",
        fix="use a degree that divides all three",
        broken=_unequal_parts,
    ),
    _rule(
        id="planned-parts-with-adapters",
        unmodelled=True,
        source=f"{_PLANNED_SOURCE}:636",
        key=_PLANNED,
        message="adapters on layers that Transformers' tensor parallel plan divides are not modelled",
        fix="leave it at 1, or train all weights",
        broken=lambda s: s.planned_parts > 1 and s.job is not None and s.job.method != "full",
    ),
    _rule(
        id="planned-parts-without-shards",
        unmodelled=True,
        source="transformers/distributed/mixin.py:324",
        key=_PLANNED,
        message="tensor parallel {degree} takes all GPUs: Transformers leaves FSDP2 out then, which is not "
        "modelled",
        fix="use a smaller degree, so that two or more ranks share each part",
        broken=lambda s: (
            s.planned_parts > 1 and s.planned_parts == s.world_size and {"degree": s.planned_parts}
        ),
    ),
    _rule(
        id="planned-parts-across-nodes",
        severity="warning",
        source=f"{_PLANNED_SOURCE}:236",
        key=_PLANNED,
        message="tensor parallel {degree} is more than a node's GPUs ({per_node}): the all-reduces of every layer "
        "cross the network",
        fix="use at most {per_node}",
        broken=lambda s: (
            s.gpus_per_node is not None
            and s.planned_parts > s.gpus_per_node
            and {"degree": s.planned_parts, "per_node": s.gpus_per_node}
        ),
    ),
    _rule(
        id="pipeline-deeper-than-the-layers",
        silent=True,
        source="deepspeed/runtime/utils.py:627",
        key="pipeline_parallel",
        message="a pipeline of {stages} stages has more than the model's {layers} layers: some stages would be empty",
        fix="use at most {layers}",
        broken=lambda s: (
            s.model is not None
            and s.pipeline_parallel > s.model.layers
            and {"stages": s.pipeline_parallel, "layers": s.model.layers}
        ),
    ),
    _rule(
        id="pipeline-when-serving",
        source="deepspeed/runtime/pipe/engine.py:1298",
        key="pipeline_parallel",
        message="DeepSpeed's pipeline engine trains only: it generates nothing",
        fix="leave it at 1",
        broken=lambda s: s.pipeline_parallel > 1 and s.job is not None and s.job.inference,
    ),
)
