"""What DeepSpeed adds to a micro-batch and to a step: traffic of gradients and weights, hooks, its optimizer.

Per GPU and step, with W the bytes of its weights and m micro-batches (DeepSpeed 0.19.8): stages 0
and 1 all-reduce once, at the accumulation boundary (2W), stage 2 every micro-batch (2mW); stages 1
and 2 gather the weights once (W). Stage 3 gathers for forward and for backward and reduces, every
micro-batch (3mW), less what ``stage3_max_reuse_distance`` keeps over the turn.
"""

from __future__ import annotations

import math

from zerokit.domain.deepspeed_settings import ZeroSettings, deepspeed
from zerokit.domain.job import Lora
from zerokit.domain.strategy import Strategy
from zerokit.memory.rank_model import ElementBytes
from zerokit.timing.spread import EngineStep, Flow, Route, Spread
from zerokit.timing.zero_3_host import Zero3Order
from zerokit.values import frozen_dataclass

_CHECK_SHARE = 13 / 18
"""Of a tensor's host time in a step, what looks for infinities and NaN (runtime/utils.py:205): below stage 3
of every gradient that a rank holds, before a wait for the GPU (zero/stage_1_and_2.py:3029, unless
``bf16.check_grad_overflow`` is false; at stage 0 fp16/fused_optimizer.py:270, in bf16 too). Kernels in traces
of an H200."""
_STAGE_0_STEP_SHARE = 15 / 18
"""Kernels of a tensor's step at stage 0, whose gradients and weights are then flat, over those of stages 1
and 2."""
_QUANTIZED_GATHER, _QUANTIZED_REDUCE = 2, 4
"""ZeRO++: weights in 8 bits instead of 16, gradients in 4 (arXiv 2306.10209)."""


@frozen_dataclass
class _Zero3Counts:
    """Gathers and reductions of a micro-batch at stage 3, and gathers after an optimizer step.

    Attributes:
        forward, backward: gathers of as many collectives each as there are ``dtypes`` in one.
        anew: gathers of one weight each besides; ``anew_share``: of all weights.
        adapters: tensors of them that are released.
    """

    forward: float
    backward: float
    dtypes: float
    anew: int
    anew_share: float
    adapters: int
    reductions: float
    persistent: int
    released: float


class DeepSpeedStep(EngineStep):
    """DeepSpeed's part."""

    def __init__(self, spread: Spread) -> None:
        super().__init__(spread)
        self._tensor_of_an_element = self._mean_tensor_of_an_element()
        self._orders: dict[tuple[int, bool], Zero3Order] = {}
        self._counted: dict[tuple[int, ZeroSettings, bool], _Zero3Counts] = {}

    def data_parallel(self, strategy: Strategy) -> Flow:
        """What crosses between data-parallel ranks."""
        settings = strategy.settings
        zero = deepspeed(settings).zero
        # sequence-parallel peers average gradients and share ZeRO's partition too
        ranks = strategy.zero_ranks
        way = self._spread.route(ranks, strategy.tensor_parallel)
        weights, trainable = self._spread.rank_weights(strategy)
        element_bytes = settings.parameter_bytes
        gradients = element_bytes * trainable
        if self._job.inference:
            gathers = weights * self._spread.weight_bytes if zero.stage == 3 else 0.0
            return Flow(route=way, per_micro=way.seconds(gathers, messages=self._shape.layers), per_step=0.0,
                        overlapped=True)  # fmt: skip
        # in one collective, whatever allgather_bucket_size says (DeepSpeed 0.19.8, runtime/utils.py:1021)
        gather_updated = way.seconds(gradients)
        if zero.stage <= 2:
            # buckets are all-reduced, and each rank keeps its part (use_multi_rank_bucket_allreduce, which
            # is DeepSpeed's default; zero/stage_1_and_2.py:1695)
            reduce = way.seconds(gradients, passes=2, messages=math.ceil(self._buckets(strategy)))
        if zero.stage == 0:
            return Flow(route=way, per_micro=0.0, per_step=reduce, overlapped=False)
        if zero.stage == 1:
            return Flow(route=way, per_micro=0.0, per_step=reduce, overlapped=zero.overlaps,
                        overlapped_at_end=zero.overlaps, after_step=gather_updated)  # fmt: skip
        if zero.stage == 2:
            return Flow(route=way, per_micro=reduce, per_step=0.0, overlapped=zero.overlaps,
                        after_step=gather_updated)  # fmt: skip
        reduce = way.seconds(gradients, messages=round(self._zero_3(strategy).reductions))
        return self._stage_3(strategy, way, weights, reduce)

    def _stage_3(self, strategy: Strategy, way: Route, weights: float, reduce: float) -> Flow:
        zero = deepspeed(strategy.settings).zero
        element_bytes = self._spread.weight_bytes * strategy.settings.parameter_bytes / 2
        counts = self._zero_3(strategy)
        per_step = way.seconds((1 - counts.released) * weights * element_bytes)
        anew = counts.anew_share * weights
        weights *= counts.released
        cached = min(weights, min(zero.max_reuse_distance, zero.max_live_parameters) / 2)
        again_bytes = (weights - cached + anew) * element_bytes
        gathers = weights * element_bytes + again_bytes
        if zero.zero_hpz_partition_size > 1:
            # the second copy inside the node serves the backward gathers (ZeRO++, arXiv 2306.10209)
            inner = self._spread.route(zero.zero_hpz_partition_size, strategy.tensor_parallel)
            first = way.seconds(
                weights * element_bytes, messages=math.ceil(counts.forward * counts.dtypes) or 1
            )
            again = math.ceil(counts.backward * counts.dtypes) + counts.anew or 1
            second = inner.seconds(again_bytes, messages=again)
            return Flow(
                route=way, per_micro=first + second + reduce, per_step=per_step, overlapped=zero.overlaps
            )
        if zero.zero_quantized_weights:
            gathers /= _QUANTIZED_GATHER
        if zero.zero_quantized_gradients:
            reduce /= _QUANTIZED_REDUCE
        messages = math.ceil((counts.forward + counts.backward) * counts.dtypes) + counts.anew or 1
        per_micro = way.seconds(gathers, messages=messages) + reduce
        return Flow(route=way, per_micro=per_micro, per_step=per_step, overlapped=zero.overlaps)

    def _zero_3(self, strategy: Strategy) -> _Zero3Counts:
        zero, parts = deepspeed(strategy.settings).zero, strategy.tensor_parallel
        full, job = self._job.method == "full", self._job
        recomputes = not full and strategy.checkpointing == "full" and not job.is_reentrant(strategy.settings)
        found = self._counted.get((parts, zero, recomputes))
        if found is None:
            narrow = job.has_narrow_adapters(strategy.settings)
            order = self._orders.get((parts, narrow))
            if order is None:
                adapters = None if full else job.lora or Lora()
                order = self._orders[parts, narrow] = Zero3Order(self._shape, parts, adapters, narrow=narrow)
            forward, backward = order.gathers(zero)
            count, share = order.anew(zero) if recomputes else (0, 0.0)
            found = self._counted[parts, zero, recomputes] = _Zero3Counts(
                forward=forward,
                backward=backward,
                dtypes=order.dtypes(zero),
                anew=count,
                anew_share=share,
                adapters=order.adapters(zero),
                reductions=order.reductions(zero) if full else self._buckets(strategy),
                persistent=order.persistent(zero),
                released=order.released(zero),
            )
        return found

    def _buckets(self, strategy: Strategy) -> float:
        """How often buckets of gradients are full; a gradient is never split between two."""
        trainable = self._spread.rank_weights(strategy)[1]
        full = trainable / deepspeed(strategy.settings).zero.reduce_bucket_size
        return max(1.0, min(full, self._spread.tensors(strategy)))

    def shared_sequences(self, strategy: Strategy) -> tuple[float, str]:
        """Exchange of Ulysses: queries, keys, values and outputs change from tokens to heads and back
        (arXiv 2309.14509, section 3.2)."""
        sp = strategy.sequence_parallel
        if sp == 1:
            return 0.0, "link"
        way = self._spread.route(sp, strategy.tensor_parallel)
        passes = 3 if strategy.checkpointing == "full" else 1 if self._job.inference else 2
        tokens = strategy.settings.micro_batch * self._job.row_tokens / sp
        seconds = 0.0
        for stack in self._shape.stacks:
            exchanged = 2 * stack.attention_width + max(
                stack.kv_width, stack.kv_width * sp / self._shape.kv_heads / 2
            )
            size = strategy.settings.parameter_bytes * tokens * exchanged / strategy.tensor_parallel
            layers = math.ceil(stack.layers / strategy.pipeline_parallel)
            seconds += layers * passes * way.seconds(size, messages=4)
        return seconds, way.kind

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """More host time of a layer at stage 3: forward, backward, recomputation."""
        if not strategy.settings.divides_weights:
            return 0.0, 0.0, 0.0
        c = self._constants
        adapted = 0.0 if self._job.method == "full" else self._shape.adapted_share(self._job.adapters.targets)
        modules = [1 + (factor - 1) * adapted for factor in c.stage3_adapter_launch]
        fetched = 0.0
        if strategy.settings.weights_device != "none":
            weights = sum(2 * len(stack.gemms) + 1 for stack in self._shape.stacks) / len(self._shape.stacks)
            fetched = c.offload_fetch_seconds * weights
        forward = backward = 0.0
        if strategy.zero_ranks > 1:
            counts, layers = self._zero_3(strategy), self._shape.layers
            tensors = c.stage3_adapter_seconds * counts.adapters
            forward = (c.gather_seconds * counts.dtypes * counts.forward + tensors) / layers
            backward = c.gather_seconds * (counts.dtypes * counts.backward + counts.anew) + tensors
            backward = (backward + c.stage3_reduce_seconds * counts.reductions) / layers
        return (
            modules[0] * (c.stage3_launch_seconds + fetched) + forward,
            modules[1] * (c.stage3_backward_seconds + fetched) + backward,
            modules[2] * (c.stage3_recompute_seconds + fetched),
        )

    def waits(self, strategy: Strategy) -> float:
        """How often a micro-batch's host waits for all ranks: at stage 3 for a gather or a reduction that is
        not done, two behind the one it issues (partitioned_param_coordinator.py:405, stage3.py, 0.19.8)."""
        if not strategy.settings.divides_weights or strategy.zero_ranks == 1:
            return 0.0
        counts = self._zero_3(strategy)
        return counts.forward + counts.backward + counts.anew + counts.reductions

    def waits_for_each_micro_batch(self, strategy: Strategy) -> bool:
        """The timer of its throughput does, unless ``timers.throughput`` says otherwise (engine.py:2946,
        utils/timer.py:237, 0.19.8); in a pipeline once a step (pipe/engine.py, ``train_batch``)."""
        return strategy.pipeline_parallel == 1

    def reductions(self, strategy: Strategy) -> float:
        """How often gradients are reduced, per micro-batch (zero/stage_1_and_2.py:2294)."""
        settings = strategy.settings
        return 1.0 if settings.divides_gradients else 1 / settings.gradient_accumulation

    def hooks(self, strategy: Strategy) -> float:
        """Host time of DeepSpeed's hooks on gradients, per micro-batch."""
        c, settings = self._constants, strategy.settings
        tensors = self._spread.tensors(strategy)
        if not settings.divides_states:
            return 0.0  # reduced after backward (runtime/engine.py, ``buffered_allreduce_fallback``)
        seconds = self.reductions(strategy) * c.hook_seconds * tensors
        if settings.optimizer_device != "none":
            # below stage 3 a rank sends the gradients of its part; at stage 3 its part of every gradient
            share = 1 if settings.divides_weights else strategy.zero_ranks
            seconds += self.reductions(strategy) * c.offload_hook_seconds * tensors / share
        return seconds

    def gradients(self, strategy: Strategy) -> float:
        """GPU seconds of a micro-batch's gradients, products and link left out."""
        c = self._constants
        peers = 2.0 if strategy.zero_ranks > 1 else 1.0
        traffic = c.gradient_bytes + c.reduce_bytes * peers * self.reductions(strategy)
        per_16_bit = strategy.settings.parameter_bytes / 2
        return traffic * per_16_bit * self._spread.rank_weights(strategy)[1] / self._hbm

    def optimizer(self, strategy: Strategy) -> float:
        """Adam on the GPU over what it steps of the owned partition; only launches when the host does it."""
        c, settings = self._constants, strategy.settings
        check = 0.0
        if settings.divides_weights:
            kernels = c.stage3_step_seconds * self._spread.tensors(strategy)
        else:
            share = 1 / strategy.zero_ranks if settings.divides_states else _STAGE_0_STEP_SHARE
            kernels = share * c.tensor_step_seconds * self._spread.tensors(strategy)
            if settings.precision != "fp32" and not settings.offloads:
                check = _CHECK_SHARE * kernels
        on_gpu = self._spread.owned(strategy) * (1 - self.hosted(strategy))
        stepped = self._sub_groups(strategy) if settings.divides_states else self._spread.tensors(strategy)
        kernels = check + max(kernels - check, c.adam_bytes * on_gpu / self._hbm)
        kernels = max(kernels, self._spread.stepped_one_by_one(strategy, stepped))
        if settings.divides_weights and strategy.zero_ranks > 1:
            kernels += c.persistent_gather_seconds * self._zero_3(strategy).persistent
        return self._sub_groups(strategy) * c.step_launch_seconds + kernels

    def flattened(self, strategy: Strategy) -> float:
        """The owned gradients (zero/stage_1_and_2.py, ``single_grad_partition``), at stage 3 a sub-group at a
        time (zero/stage3.py, ``_prepare_sub_group``); none at stage 0 and where the host steps."""
        zero, owned = deepspeed(strategy.settings).zero, self._spread.owned(strategy)
        if zero.stage == 0 or strategy.settings.optimizer_device != "none":
            return 0.0
        return min(owned, zero.sub_group_size) if zero.stage == 3 else owned

    def _sub_groups(self, strategy: Strategy) -> int:
        """How many a rank's optimizer step has. A tensor that reaches the limit goes into a sub-group whole,
        half of it beyond the limit as a rule."""
        zero = deepspeed(strategy.settings).zero
        beyond = self._tensor_of_an_element / 2 / strategy.tensor_parallel / strategy.zero_ranks
        return (
            max(1, math.ceil(self._spread.owned(strategy) / (zero.sub_group_size + beyond)))
            if zero.stage == 3
            else 1
        )

    def hosted(self, strategy: Strategy) -> float:
        """Share of a rank's optimizer step that the host makes. Under a partial offload (``ratio``, stage 3
        alone) the first sub-groups stay on the GPU, with their gradients (zero/stage3.py:1100, 0.19.8)."""
        zero = deepspeed(strategy.settings).zero
        if zero.offload_optimizer.device == "none" or zero.stage == 0:
            return 0.0
        groups = self._sub_groups(strategy)
        return 1 - int((1 - zero.offload_optimizer.ratio) * groups) / groups

    def offloaded_gradients(self, strategy: Strategy, owned: float) -> tuple[float, float]:
        """Bytes of gradients that go to the host once a step, and both ways each micro-batch.

        At the boundary they go down as wide as the master weights (zero/stage_1_and_2.py:1888,
        zero/stage3.py:1443). Until then stage 1 adds them up on the GPU, and stage 2 too when it is to do so
        in fp32; else stage 2 on the host, from which the sum comes back to be added to
        (zero/stage_1_and_2.py:2166), as stage 3 does even without accumulation (zero/stage3.py:2021).
        """
        settings = deepspeed(strategy.settings)
        low = settings.bf16_master_weights_and_grads or settings.fp16_master_weights_and_grads
        step = (2.0 if low else 4.0) * owned
        summed = (
            settings.zero.stage == 2
            and settings.gradient_accumulation > 1
            and not ElementBytes.of(settings).compact
        )
        on_host = settings.divides_weights or summed
        return step, settings.parameter_bytes * owned if on_host else 0.0

    def _mean_tensor_of_an_element(self) -> float:
        """Elements of the tensor in which a trained element of the layers lies, on average; of adapters those
        of all linear modules."""
        rank = self._job.lora.rank if self._job.lora is not None else 0
        sizes = [
            size * (gemm.copies if gemm.stacked else 1)
            for stack in self._shape.stacks
            for gemm in stack.gemms
            for module in gemm.modules or (gemm,)
            for size in ((rank * module.n, rank * gemm.k) if rank else (module.n * gemm.k,))
        ]
        return sum(size * size for size in sizes) / max(1, sum(sizes))
