"""Memory by closed forms from a model's shape alone, for models without a trace.

Every component of DeepSpeed 0.19.8's ZeRO stages (paths under ``deepspeed/runtime/zero``) and an
approximation of the activations of Hugging Face's eager modules. Its results are marked
``basis="analytic"``; a traced profile is exact where this is within some ten per cent.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.hardware import Cluster, Gpu
from zerokit.domain.job import QUANTIZED_BYTES, Job, Lora
from zerokit.domain.model_shape import EAGER_SCORE_BYTES, MATH_SCORE_BYTES, ModelShape, Stack
from zerokit.domain.profile import sequences_of_a_rank
from zerokit.domain.strategy import MemoryEstimate, RankEstimate, Strategy
from zerokit.domain.trainers import NOT_FUSED
from zerokit.memory.card import min_vram_bytes
from zerokit.memory.components import Component, by_key, in_ram, on_nvme
from zerokit.memory.fused_loss import LossSize, fused_loss
from zerokit.memory.quantised_load import load_notes, loaded_bytes, loads_whole
from zerokit.memory.rank_model import prepared_bytes, recomputed_notes, recomputed_weights_stay
from zerokit.memory.replay.model_states import CUBLAS_THREADS, runs_bf16_optimizer, state_bytes
from zerokit.notes import Note
from zerokit.values import frozen_dataclass, replace

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

_GENERATED_LOGIT_BYTES = 16.0
"""Per logit of a token that is generated: what the head makes, that in fp32, and probabilities, twice."""
_WITHOUT_GRAPH = 0.55
"""Of what a layer holds that is computed anew (0.46 to 0.58 in Llama-3.2-1B's traces)."""
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
    the adapters copies of them in fp32 (``zerokit.trace.building.build``).
    """
    if job.method == "full" or job.inference:
        return 0.0
    lora, element_bytes = job.lora or Lora(), strategy.settings.parameter_bytes
    sharded = strategy.settings.has_own_linear
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
    in_math = strategy.settings.product_bytes == _FP32 and shape.kv_heads < shape.heads and not job.inference
    least = EAGER_SCORE_BYTES if job.attention == "eager" else MATH_SCORE_BYTES if in_math else (0.0, 0.0)
    kept, alive = max(kept, least[0]), max(alive, least[1])
    kept = 0.0 if strategy.recomputed(job.attention) == "selective" else kept
    pairs = shape.heads * job.seq_len
    return kept * pairs, alive * pairs


def activation_bytes(shape: ModelShape, job: Job, strategy: Strategy) -> tuple[float, float]:
    """Bytes kept through the forward pass, and the transient ones of the layer being worked on."""
    tokens = strategy.settings.micro_batch * job.row_tokens / strategy.sequence_parallel
    element_bytes, tp = strategy.settings.parameter_bytes, strategy.tensor_parallel
    pp = strategy.pipeline_parallel
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


CLOSED_FORM = "analytic"
"""``basis`` of these estimates."""
CLOSED_FORM_NOTE = Note(
    "closed-form", "memory in closed form, not traced: activations ± 25 %, the rest ± 5 %"
)
WITHIN, _CROSS_WITHIN, REST_WITHIN = 0.25, 1.5, 0.05
"""How far above it a trace may be (``python -m benchmarks.closed_form``); the second of the activations of a
decoder that reads an encoder."""
_CROSS_ASSUMPTION = Note(
    "closed-form-cross", "of encoder-decoders the closed form knows activations within 150 % only"
)
_STEP_BYTES = 6.0
"""A trainable weight's gradient flattened in 16 bits and again in fp32 (zero/stage_1_and_2.py, step)."""
_STAGE_0_STEP_BYTES = 10.0
"""At stage 0 beside its gradients of 16 bits: every gradient in fp32 and a flat copy of them, 8
(runtime/fp16/fused_optimizer.py, step; ``WholeGradients`` of the replay), and 2 as a margin."""
_STAGE_0_INIT_BYTES = {2: 18.0, 4: 12.0}
"""Beside the weights, by bytes of one: gradients in fp32 and Adam's two moments; in 16-bit training master
weights and the flat copy too (runtime/fp16/fused_optimizer.py, initialize_optimizer_states)."""
_HEAD_INPUT_BYTES = 8.0
"""Per token and hidden element while the loss is worked on: the last norm's input in 16 bits and in fp32, and
its output (traces of Llama 3.1 8B and OPT 6.7B with full checkpointing: 6 to 8)."""
_ADAM_BYTES = 8.0
"""Of Adam's two moments."""
_AHEAD_SHARE = 1 / 2
"""Of a layer, what is fetched beyond ``max_live_parameters`` on average, whatever the reuse distance and the
prefetch bucket (replays of OPT 6.7B, Llama 3.2 3B and Qwen3 30B: 0.02 to 0.6)."""


@frozen_dataclass
class _Sizes:
    """Elements on one rank, before ZeRO divides them; ``element_bytes`` of a weight; ``ranks`` of ZeRO."""

    weights: float
    trainable: float
    weight_bytes: float
    frozen_bytes: float  # of them, those of the base under adapters
    packed: float  # quantised weights
    packed_bytes: float
    element_bytes: int
    ranks: int
    largest: float
    layer: float
    viewed: float  # of weights of which views are saved, in all layers
    persistent: float  # never given back at ZeRO-3: tensors within the threshold


def trainable_parameters(shape: ModelShape, job: Job) -> int:
    """Parameters that get gradients: all of them, or the LoRA matrices (arXiv 2106.09685)."""
    if job.method == "full":
        return shape.parameters
    lora = job.lora or Lora()
    return sum(
        stack.layers * gemm.adapter_parameters(lora.rank, lora.targets)
        for stack in shape.stacks
        for gemm in stack.gemms
    )


def _uncounted_adapters(shape: ModelShape, job: Job) -> tuple[Note, ...]:
    """A note on targets that are no linear modules of the layers: an output head, a vision tower's own."""
    if job.method == "full" or job.inference or job.lora is None:
        return ()
    gemms = [gemm for stack in shape.stacks for gemm in stack.gemms]
    missed = [name for name in job.lora.targets if not any(gemm.adapted((name,)) for gemm in gemms)]
    if not missed:
        return ()
    text = f"adapters on {', '.join(missed)} not counted: in closed form only those of the layers are known"
    return (Note("adapters-not-counted", text),)


def _within_threshold(shape: ModelShape, strategy: Strategy) -> float:
    """Elements of matrices and tables that stay gathered at ZeRO-3, up to ``model_persistence_threshold``.
    (runtime/zero/parameter_offload.py, mark_persistent_parameters.) Norms and biases are too few to count."""
    zero, degree = deepspeed(strategy.settings).zero, strategy.tensor_parallel * strategy.pipeline_parallel
    if zero.stage != 3:
        return 0.0
    limit = zero.param_persistence_threshold * strategy.tensor_parallel
    products = sum(
        stack.layers * gemm.parameters
        for stack in shape.stacks
        for gemm in stack.gemms
        if (gemm.parameters if gemm.stacked else gemm.n * gemm.k / gemm.fused) <= limit
    )
    tables = shape.parameters - shape.block_parameters if shape.largest_parameter <= limit else 0
    return min((products + tables) / degree, float(zero.model_persistence_threshold))


def estimate_analytic(
    shape: ModelShape,
    job: Job,
    strategy: Strategy,
    cluster: Cluster,
    *,
    bytes_per_logit: float = EAGER_LOSS_BYTES,
) -> MemoryEstimate:
    """Predicted memory of one rank; all ranks are alike but for a pipeline's first and last stage. The worst
    pipeline stage is taken for all: the one with the output head, or the first."""
    sizes = _sizes(shape, job, strategy)
    if job.inference:
        return _inference(shape, job, strategy, cluster, sizes)
    persistent = _persistent(sizes, strategy, cluster.gpu)
    if job.defaults.reference and job.method == "full":
        copies = sizes.ranks if strategy.settings.divides_weights else 1
        on_gpu = strategy.settings.weights_device == "none"
        persistent[Component.SCRIPT] = sizes.weight_bytes / copies if on_gpu else 0.0
    layers_before, transient = activation_bytes(shape, job, strategy)
    gradients = _gradients(sizes, strategy)
    gathered = _gathered(sizes, strategy)
    base = sum(persistent.values())
    losses = _losses(shape, job, strategy, cluster, bytes_per_logit)
    kept = {**persistent, Component.GATHERED_PARAMETERS: gathered}
    in_layer = {**kept, Component.ACTIVATIONS: layers_before + transient}
    # what a layer works on, and what it computes again, is gone while the loss is worked on
    head_input = _HEAD_INPUT_BYTES * shape.hidden * strategy.settings.micro_batch * job.seq_len
    at_loss = {**kept, Component.ACTIVATIONS: layers_before + head_input / strategy.sequence_parallel}
    # gradients pile up as activations go: those of one micro-batch never meet its loss
    before, in_forward = gradients, dict[Component, float]()
    if not strategy.settings.divides_gradients:
        summed = {Component.GRADIENTS: gradients[Component.GRADIENTS]}
        if strategy.settings.gradient_accumulation > 1:
            in_forward = summed
        else:
            before = {name: size for name, size in gradients.items() if name not in summed}
    forward = _highest({**in_layer, **in_forward}, {**at_loss, **in_forward, Component.LOSS: losses[0]})
    # a tied head's gradient waits for the embedding's: two and their sum at the end
    table = sizes.element_bytes * shape.head_parameters / strategy.tensor_parallel if shape.tied else 0.0
    table = table if job.method == "full" and strategy.pipeline_parallel == 1 else 0.0
    waiting = table if strategy.settings.divides_gradients else 0.0
    piled = gradients.get(Component.GRADIENTS, 0.0) + waiting
    last = sizes.frozen_bytes if recomputed_weights_stay(job, strategy) else gathered
    backward = _highest(
        {**in_layer, **gradients, Component.GRADIENTS: piled},
        {**at_loss, **before, Component.LOSS: losses[1]},
        {**kept, **gradients, Component.GRADIENTS: piled + 2 * table, Component.GATHERED_PARAMETERS: last},
    )
    step = {**persistent, **gradients, Component.OPTIMIZER_TEMPORARIES: _step(sizes, strategy)}
    setup = _init(sizes, strategy, base, cluster.gpu)
    loaded = loaded_bytes(sizes.weight_bytes, sizes.element_bytes, sizes.trainable)
    loaded = loaded if loads_whole(strategy, job) else 0.0
    if job.kbit_prepared and sizes.element_bytes < _FP32:
        prepared = prepared_bytes(sizes.packed_bytes, sizes.weights - sizes.packed, sizes.trainable)
        loaded = max(loaded, prepared)
    init = {Component.LOADED_MODEL: loaded} if loaded > setup else {Component.INITIALISATION: setup}
    phases = {"init": init, "forward": forward, "backward": backward, "step": step}
    refers_before = job.defaults.reference and job.defaults.completes
    batch = job.eval_batch or (strategy.settings.micro_batch if refers_before else None)
    if batch is not None:  # a layer at a time, then the loss
        settings = replace(strategy.settings, micro_batch=batch)
        evaluated = replace(strategy, settings=settings, checkpointing="full")
        working = _WITHOUT_GRAPH * activation_bytes(shape, job, evaluated)[1]
        loss = _losses(shape, job, evaluated, cluster, bytes_per_logit)[0]
        phases["eval"] = _highest({**kept, Component.ACTIVATIONS: working}, {**kept, Component.LOSS: loss})
    if job.defaults.generates:
        whole = sizes.weight_bytes if strategy.settings.divides_weights else 0.0
        phases["generate"] = _highest(
            *({**persistent, Component.GATHERED_PARAMETERS: whole, **live}
              for live in _generated(shape, job, strategy, sizes))
        )  # fmt: skip
    return _finish(phases, shape, strategy, cluster, job, sizes)


def _generated(
    shape: ModelShape, job: Job, strategy: Strategy, sizes: _Sizes
) -> Iterator[dict[Component, float]]:
    """What is live beside the weights while a step's sequences are generated: with their prompts, and in the
    last step (``zerokit.memory.generation``)."""
    settings, (prompt, longest) = strategy.settings, job.serving_tokens
    sequences = settings.micro_batch * settings.gradient_accumulation
    read = replace(settings, micro_batch=sequences)
    read_by = replace(strategy, settings=read, checkpointing="full")
    working = _WITHOUT_GRAPH * activation_bytes(shape, replace(job, seq_len=prompt), read_by)[1]
    casts = 0.0
    if settings.autocasts and job.method == "full":
        casts = settings.product_bytes * (shape.linear_parameters + shape.head_parameters)
    words = _GENERATED_LOGIT_BYTES * shape.vocab * sequences
    cache = _cache_bytes(shape, sizes.element_bytes, strategy, sequences)
    yield {Component.KV_CACHE: prompt * cache, Component.ACTIVATIONS: working + casts}
    yield {Component.KV_CACHE: longest * cache, Component.ACTIVATIONS: words + casts}


def _cache_bytes(shape: ModelShape, element_bytes: int, strategy: Strategy, sequences: int) -> float:
    """Bytes of keys and values of one token of each sequence, in all layers."""
    width = sum(stack.layers * stack.kv_width for stack in shape.stacks if stack.causal)
    return element_bytes * width * sequences / min(strategy.tensor_parallel, shape.kv_heads)


def _highest(*instants: dict[Component, float]) -> dict[Component, float]:
    return max(instants, key=lambda parts: sum(parts.values()))


def _losses(
    shape: ModelShape, job: Job, strategy: Strategy, cluster: Cluster, bytes_per_logit: float
) -> tuple[float, float]:
    """Bytes of the loss at the end of forward and at its worst in backward."""
    if job.loss == "standard":
        loss = logits(shape, job, strategy) * (bytes_per_logit + CAPPED_BYTES * shape.kept.caps_logits)
        return loss * LOSS_FORWARD_SHARE, loss
    fused = fused_loss(
        job.loss,
        LossSize(
            sequences=sequences_of_a_rank(job, strategy),
            seq_len=max(1, job.seq_len // strategy.sequence_parallel),
            hidden=shape.hidden,
            vocabulary=shape.vocab,
            element_bytes=strategy.settings.parameter_bytes,
            product_bytes=strategy.settings.product_bytes,
            output_bytes=strategy.settings.output_bytes,
            trained=job.method == "full",
            adds_in_place=cluster.gpu.supports("bf16"),
            scored=job.scored_tokens,
        ),
    )
    return fused.most(job.defaults.refers_in_step)


def _sizes(shape: ModelShape, job: Job, strategy: Strategy) -> _Sizes:
    split = strategy.tensor_parallel * strategy.pipeline_parallel
    tables = shape.parameters - shape.block_parameters
    weights = shape.block_parameters / split + tables / (strategy.tensor_parallel if split > 1 else 1)
    trainable = weights if job.method == "full" else trainable_parameters(shape, job) / split
    element_bytes = strategy.settings.parameter_bytes
    packed_bytes = QUANTIZED_BYTES.get(job.quantization) if job.inference else job.packed_base_bytes
    packed = 0.0 if packed_bytes is None else shape.linear_parameters / split
    weight_bytes = (packed_bytes or 0.0) * packed + element_bytes * (weights - packed)
    frozen_bytes = 0.0 if job.method == "full" else weight_bytes
    if job.method != "full":
        weight_bytes += element_bytes * trainable
    return _Sizes(
        weights=weights,
        trainable=trainable,
        weight_bytes=weight_bytes,
        frozen_bytes=frozen_bytes,
        packed=packed,
        packed_bytes=(packed_bytes or 0.0) * packed,
        element_bytes=element_bytes,
        # sequence-parallel peers hold the same weights: ZeRO divides over them as well
        ranks=strategy.zero_ranks,
        largest=shape.largest_parameter / strategy.tensor_parallel,
        layer=max(stack.layer_parameters for stack in shape.stacks) / strategy.tensor_parallel,
        viewed=(shape.block_parameters if shape.kept.views_weights else shape.stacked_parameters) / split,
        persistent=min(weights, _within_threshold(shape, strategy)),
    )


def _offloads(strategy: Strategy) -> tuple[bool, bool]:
    return strategy.settings.optimizer_device != "none", strategy.settings.weights_device != "none"


def _persistent(sizes: _Sizes, strategy: Strategy, gpu: Gpu) -> dict[Component, float]:
    settings, ranks, element_bytes = deepspeed(strategy.settings), sizes.ranks, sizes.element_bytes
    away, parameters_away = _offloads(strategy)
    shared = ranks if settings.divides_states else 1
    master = 4 if element_bytes == 2 else 0
    states: dict[Component, float] = {}
    if not settings.divides_weights:
        states[Component.FROZEN_PARAMETERS] = sizes.frozen_bytes
        states[Component.PARAMETERS] = sizes.weight_bytes - sizes.frozen_bytes
    elif not parameters_away:
        states[Component.PARAMETERS] = sizes.weight_bytes / ranks
    states[Component.MASTER_WEIGHTS] = 0.0 if away else master * sizes.trainable / shared
    states[Component.OPTIMIZER_STATES] = (
        0.0 if away else float(state_bytes(settings, [int(sizes.trainable / shared)]))
    )
    if settings.divides_weights and not away:
        # grad_partitions_flat_buffer, from init
        states[Component.GRADIENT_PARTITION] = element_bytes * sizes.trainable / ranks
    if away and not settings.divides_weights:
        states[Component.OFFLOAD_BUFFER] = 2 * element_bytes * sizes.largest
    if settings.divides_weights:
        states[Component.GRADIENT_BUCKET] = element_bytes * settings.zero.reduce_bucket_size
    states[Component.CUBLAS_WORKSPACE] = CUBLAS_THREADS * gpu.cublas_workspace_bytes
    return {name: value for name, value in states.items() if value}


def _gradients(sizes: _Sizes, strategy: Strategy) -> dict[Component, float]:
    zero, element_bytes = deepspeed(strategy.settings).zero, sizes.element_bytes
    bucket = element_bytes * min(zero.reduce_bucket_size, sizes.trainable)
    optimizer_away = _offloads(strategy)[0]
    if zero.stage == 3:
        # offloaded with the optimizer, they leave bucket by bucket
        kept_bytes = 0.0 if optimizer_away else element_bytes * sizes.trainable / sizes.ranks
        return {Component.GRADIENT_PARTITION: kept_bytes, Component.REDUCE_COPY: bucket}
    full = element_bytes * sizes.trainable
    if zero.stage == 0:
        return {Component.GRADIENTS: full}
    held_bytes = full if zero.stage == 1 else full / sizes.ranks + element_bytes * sizes.largest
    if zero.stage == 2 and strategy.settings.gradient_accumulation > 1:
        held_bytes *= 2
    if zero.stage == 2 and optimizer_away:
        held_bytes = 0.0
    buckets = element_bytes * zero.reduce_bucket_size * (2 if zero.overlaps else 1)
    return {
        Component.GRADIENTS: held_bytes,
        Component.GRADIENT_BUCKET: buckets,
        Component.REDUCE_COPY: bucket,
    }


def _gathered(sizes: _Sizes, strategy: Strategy) -> float:
    zero = deepspeed(strategy.settings).zero
    if zero.stage != 3 or (sizes.ranks == 1 and not _offloads(strategy)[1]):
        return 0.0
    others = max(sizes.layer, sizes.largest, zero.max_live_parameters + _AHEAD_SHARE * sizes.layer)
    if strategy.checkpointing == "none":  # views of them, saved for backward (``Modules._saved``, modules.py)
        others += sizes.viewed
    others = min(sizes.weights - sizes.persistent, others)
    elements = sizes.persistent + others
    return elements * sizes.weight_bytes / max(1.0, sizes.weights)


def _step(sizes: _Sizes, strategy: Strategy) -> float:
    zero = deepspeed(strategy.settings).zero
    if _offloads(strategy)[0]:
        return 0.0
    owned = sizes.trainable / (sizes.ranks if zero.stage else 1)
    if zero.stage == 3:
        return _STEP_BYTES * min(owned, zero.sub_group_size)
    if zero.stage == 0:
        return (_STAGE_0_STEP_BYTES if sizes.element_bytes == 2 else _FP32) * owned
    return _STEP_BYTES * owned


def _init(sizes: _Sizes, strategy: Strategy, base: float, gpu: Gpu) -> float:
    settings = deepspeed(strategy.settings)
    if settings.divides_weights:
        return base
    if not settings.divides_states:
        more = max(0, state_bytes(settings, [int(sizes.trainable)]) - _ADAM_BYTES * sizes.trainable)
        return max(
            base, _STAGE_0_INIT_BYTES[sizes.element_bytes] * sizes.trainable + sizes.weight_bytes + more
        )
    flat = sizes.weight_bytes + sizes.element_bytes * sizes.trainable
    first = sizes.weight_bytes + (0 if _offloads(strategy)[0] else 2 * _FP32 * sizes.trainable / sizes.ranks)
    # replay/model_states.py, flattening_bytes
    is_copied = min_vram_bytes(gpu, strategy, int(flat)) <= gpu.driver_vram_bytes
    return max(flat, first) if is_copied or runs_bf16_optimizer(settings) else first


def _finish(
    phases: dict[str, dict[Component, float]], shape: ModelShape, strategy: Strategy, cluster: Cluster,
    job: Job, sizes: _Sizes,
) -> MemoryEstimate:  # fmt: skip
    from zerokit.memory.closed_form_host import host_of_rank

    rounded = {name: {k: int(v) for k, v in parts.items() if v >= 1} for name, parts in phases.items()}
    peaks = {name: sum(parts.values()) for name, parts in rounded.items()}
    worst = max(peaks, key=lambda name: peaks[name])
    per_node = max(1, strategy.world_size // cluster.nodes)
    copies = 2 if job.defaults.reference and job.method == "full" and not job.inference else 1
    trainable = 0.0 if job.inference else sizes.trainable
    host = host_of_rank(shape, strategy, trainable, copies * sizes.weight_bytes)
    on_host = in_ram(host, per_node)
    rank = RankEstimate(
        first=0, last=strategy.world_size - 1, peak_allocated_bytes=peaks[worst], peak_phase=worst,
        phases=peaks, components=by_key(rounded[worst]),
    )  # fmt: skip
    # models below stage 3 are built in host memory by every rank before they move, but for quantised ones
    loading = int(sizes.weight_bytes) * per_node
    loading = loading if not strategy.settings.divides_weights and not job.loads_on_gpu else 0
    total = sum(on_host.values()) + (0 if sum(on_host.values()) > loading else loading)
    is_crossed = any(stack.cross_attention for stack in shape.stacks)
    highest = max(sum(parts.values()) + _unsure_bytes(parts, is_crossed) for parts in rounded.values())
    return MemoryEstimate(
        ranks=(rank,),
        min_vram_bytes=min_vram_bytes(cluster.gpu, strategy, peaks[worst], job.defaults),
        unsure_bytes=int(highest - peaks[worst]),
        host_bytes_per_node=total,
        host_components=on_host,
        nvme_bytes_per_node=on_nvme(host, per_node),
        assumptions=(
            CLOSED_FORM_NOTE,
            *((_CROSS_ASSUMPTION,) if is_crossed else ()),
            *_uncounted_adapters(shape, job),
            *([NOT_FUSED] if job.fuses_adapters else []),
            *load_notes(sizes.weight_bytes, strategy, job),
            *recomputed_notes(job, strategy),
        ),
        basis=CLOSED_FORM,
    )


def _unsure_bytes(parts: dict[Component, int], is_crossed: bool) -> float:
    """How much more a phase may take."""
    activations, within = parts.get(Component.ACTIVATIONS, 0), _CROSS_WITHIN if is_crossed else WITHIN
    return within * activations + REST_WITHIN * (sum(parts.values()) - activations)


def _inference(
    shape: ModelShape, job: Job, strategy: Strategy, cluster: Cluster, sizes: _Sizes
) -> MemoryEstimate:
    """Weights, the KV cache at its longest, one layer's working set for a prompt, the last token's logits."""
    element_bytes, tp, micro = sizes.element_bytes, strategy.tensor_parallel, strategy.settings.micro_batch
    prompt, longest = job.serving_tokens
    cache = longest * _cache_bytes(shape, element_bytes, strategy, micro)
    widest = max(gemm.n * gemm.active for stack in shape.stacks for gemm in stack.gemms)
    work = 2 * element_bytes * widest / tp * micro * prompt + LAST_LOGIT_BYTES * shape.vocab * micro
    weights = sizes.weight_bytes / (sizes.ranks if strategy.settings.divides_weights else 1)
    parts = {
        Component.PARAMETERS: weights,
        Component.KV_CACHE: cache,
        Component.ACTIVATIONS: work,
        Component.CUBLAS_WORKSPACE: float(cluster.gpu.cublas_workspace_bytes),
    }
    gathered = _gathered(sizes, strategy)
    phases = {
        "init": {Component.PARAMETERS: weights},
        "forward": {**parts, Component.GATHERED_PARAMETERS: gathered},
        "backward": {Component.PARAMETERS: weights},
        "step": {Component.PARAMETERS: weights},
    }
    return _finish(phases, shape, strategy, cluster, job, sizes)
