"""Activations by closed forms: what layers and the loss keep for backward, and what they work on."""

from __future__ import annotations

from zerokit.domain.job import Job, Lora
from zerokit.domain.kept_for_backward import EAGER_SCORE_BYTES
from zerokit.domain.model_shape import ModelShape, Stack
from zerokit.domain.strategy import Strategy

EAGER_LOSS_BYTES = 12.0
"""Per logit at the worst instant of backward: 16-bit logits, fp32 copy, log-softmax and gradients."""
FUSED_LOSS_BYTES = 4.0
"""Per logit with a fused cross-entropy that writes the gradient over the 16-bit logits' copy."""
CAPPED_BYTES = 2.0
"""Per logit of which a capped one is made: 14 in all in Gemma-2's traces."""
LOSS_FORWARD_SHARE = 5 / 6
"""Of the bytes of a logit in backward, those at the end of forward: 10 of 12, without its 16-bit gradient."""
LAST_LOGIT_BYTES = 6.0
"""Per logit of the last token when nothing is trained: in 16 bits and in fp32."""

_16_BIT, _FP32 = 2.0, 4.0
_GATED_HIDDEN_BYTES, _GATED_FFN_BYTES = 21.0, 8.0
"""Per token, layer and element of the hidden and of the feed-forward width, in 16-bit training: 0.99 to 1.00
of what the traces of TinyLlama, Llama 3.1 8B, Mistral 7B and Qwen2.5 3B keep with scaled-dot-product kernels
(Transformers 5). Four tensors of the feed-forward width: gate, its activation, up, and their product."""
_PLAIN_HIDDEN_BYTES, _PLAIN_FFN_BYTES = 16.0, 4.0
"""The same of two LayerNorms and a feed-forward of input and output of its activation (arXiv 2205.05198,
equation 2, without dropout's masks). OPT's ReLU keeps only its output: 0.81 of it in the trace."""
_NORM_BYTES = 6.0
"""Per element of queries and keys that are normalised: an fp32 copy, and the 16-bit product (traces of
Qwen3)."""
_ROUTED_BYTES = 6.0
"""Per hidden element and expert that a token meets: sorted, through the expert, weighted; 16 bits each."""


def _layer_bytes(shape: ModelShape, stack: Stack, job: Job, element_bytes: int) -> float:
    """Saved for backward by one layer per token (Korthikanti et al., arXiv 2205.05198, without dropout).

    Gated models normalise in fp32 and keep four tensors of the feed-forward width. Routed experts keep their
    tokens sorted, what comes out of them, and that weighted, once for each expert that a token meets
    (transformers/integrations/moe.py, ``grouped_mm_experts_forward``).
    """
    active = 1.0
    routed = 0.0
    for gemm in stack.gemms:
        if gemm.copies > 1:
            active = max(active, gemm.active)
            routed = _ROUTED_BYTES * stack.hidden * gemm.active
    scale = element_bytes / 2
    if shape.gated:
        saved = _GATED_HIDDEN_BYTES * stack.hidden + _GATED_FFN_BYTES * stack.ffn * active
    else:
        width = _PLAIN_FFN_BYTES + _16_BIT * shape.kept.gelu_tensors
        saved = _PLAIN_HIDDEN_BYTES * stack.hidden + width * stack.ffn * active
    wide = _16_BIT * max(0, stack.kv_width - stack.hidden)
    wide += 2 * _16_BIT * max(0, stack.attention_width - stack.hidden)  # queries, and what attention gives
    normed = _NORM_BYTES * (stack.attention_width + stack.kv_width / 2) if shape.kept.norms_keys else 0.0
    return scale * (saved + routed + wide + normed)


def _adapter_bytes(stack: Stack, job: Job, strategy: Strategy) -> float:
    """Bytes per token that the adapters of one layer keep beside the inputs that a trained layer keeps.

    Below ZeRO-3 what dropout leaves of each input and a mask, for which the input itself goes unless it is
    what attention gives (``zerokit.memory.adapter_dropout``). ZeRO-3's frozen layers keep their inputs, and
    the adapters copies of them in fp32 (``zerokit.trace.building.adapters``).
    """
    if job.method == "full" or job.inference:
        return 0.0
    lora, element_bytes = job.lora or Lora(), strategy.settings.parameter_bytes
    sharded = strategy.settings.zero.stage == 3
    kept = 0.0
    for gemm in stack.gemms:
        adapted = gemm.adapted(lora.targets) if gemm.copies == 1 else ()  # peft refuses dropout on experts
        width = gemm.k / (strategy.tensor_parallel if gemm.split == "row" else 1)
        if adapted and (sharded or lora.dropout):
            kept += len(adapted) * width * ((_FP32 if sharded else element_bytes) + bool(lora.dropout))
        if adapted and lora.dropout and not sharded and (gemm.kind, gemm.split) != ("attention", "row"):
            kept -= element_bytes * width
    return kept


def _adapted_experts(stack: Stack, job: Job, element_bytes: int) -> float:
    """Bytes of one layer's experts with adapters on them: peft adds the product of the adapters to the
    stacked weights, and autograd keeps the sum (``ParamWrapper``, peft/tuners/lora/layer.py, 0.21)."""
    if job.method == "full" or job.inference:
        return 0.0
    targets = (job.lora or Lora()).targets
    experts = (gemm for gemm in stack.gemms if gemm.stacked and gemm.adapted(targets))
    return float(element_bytes * sum(gemm.parameters for gemm in experts))


def _score_bytes(shape: ModelShape, job: Job, strategy: Strategy) -> tuple[float, float]:
    """Attention scores per token: kept, and alive while a layer is worked on."""
    kept, alive = shape.kept.score_bytes
    if job.attention == "eager":
        kept, alive = max(kept, EAGER_SCORE_BYTES[0]), max(alive, EAGER_SCORE_BYTES[1])
        kept = 0.0 if strategy.checkpointing == "selective" else kept
    pairs = shape.heads * job.seq_len
    return kept * pairs, alive * pairs


def activation_bytes(shape: ModelShape, job: Job, strategy: Strategy) -> tuple[float, float]:
    """Bytes kept through the forward pass, and the transient ones of the layer being worked on."""
    tokens = strategy.settings.micro_batch * job.row_tokens / strategy.sequence_parallel
    element_bytes, tp, pp = (
        strategy.settings.parameter_bytes,
        strategy.tensor_parallel,
        strategy.pipeline_parallel,
    )
    in_flight = min(pp, strategy.settings.gradient_accumulation)  # 1F1B, first stage
    saved = transient = 0.0
    for stack in shape.stacks:
        count = stack.layers / pp * in_flight
        stack_tokens = tokens
        if stack.fixed_tokens is not None:
            stack_tokens = strategy.settings.micro_batch * stack.fixed_tokens
        kept_scores, scores = _score_bytes(shape, job, strategy)
        full = (_layer_bytes(shape, stack, job, element_bytes) + kept_scores) / tp
        scores = (scores - kept_scores) / tp * stack_tokens
        full += _adapter_bytes(stack, job, strategy)
        experts = _adapted_experts(stack, job, element_bytes) / tp
        if strategy.checkpointing == "full":
            saved += count * element_bytes * stack.hidden * stack_tokens
            transient = max(transient, full * stack_tokens + experts + scores)
        else:
            saved += count * (full * stack_tokens + experts)
        widest = max(gemm.n * gemm.active for gemm in stack.gemms) / tp
        if strategy.checkpointing == "full":
            transient += element_bytes * widest * stack_tokens
        else:
            transient = max(transient, 2 * element_bytes * widest * stack_tokens, scores)
    return saved, transient


def logits(shape: ModelShape, job: Job, strategy: Strategy) -> float:
    """Elements of the logits of one micro-batch."""
    rows = strategy.settings.micro_batch
    if shape.head != "image-classification":
        rows *= max(1, job.row_tokens // strategy.sequence_parallel)
    return float(rows) * shape.vocab
