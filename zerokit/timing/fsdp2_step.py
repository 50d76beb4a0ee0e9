"""What FSDP2 adds to a micro-batch and to a step: gathers, reductions, their copies, hooks, the optimizer.

``fully_shard`` of torch 2.13 (torch/distributed/fsdp/_fully_shard): each group of parameters, a layer as a
rule, is gathered for forward, and for backward where forward gave it back (``_fsdp_param_group.py``,
``pre_forward``, ``pre_backward``); its gradients are reduced and scattered where the script lets them, in the
last micro-batch of a step as a rule (``set_requires_gradient_sync``), and with replicas the shards are
all-reduced then. Gathers run ahead of the compute that waits for them, reductions behind it.
"""

from __future__ import annotations

from zerokit.domain.fsdp2_settings import Fsdp2Settings, fsdp2
from zerokit.domain.strategy import Strategy
from zerokit.memory.rank_model import DTYPE_BYTES
from zerokit.timing.spread import EngineStep, Flow

_GROUPS_BESIDE_LAYERS = 2
"""The embedding, and the head with the last norm (accelerate/utils/fsdp_utils.py, ``fsdp2_prepare_model``,
1.15); in a plain loop both are the root's."""
_COPY_SHARE = 0.45
"""Of the memory bandwidth that copies to and from a group's buffer reach: 21 bytes of a weight in 0.76 ms for
67 million, in the kernels of the same rehearsals as the host's times (``zerokit.timing.constants``)."""
_FUSED_ADAM_BYTES = 35.0
"""Of HBM traffic per element of a fused AdamW on shards in fp32: 28, at four fifths of the rate."""
_GRADIENT_BYTES = 4
"""Of keys and values, as ring attention sends them (``convert_to_f32``)."""
_CLIPPING_BYTES = 12.0
"""Gradients read for the norm, read and written where they are scaled."""


_ROUND_KERNELS = (21.0, 58.0)
"""What the host takes for a round of ring attention, forward and backward, in kernels: 1.2 and 3.2 ms a layer
more on two H200s than without (torch 2.11, tensor/experimental/_context_parallel/_attention.py); with more
ranks it was not measured."""
_PART_KERNELS = (8.0, 14.0)
"""What the host takes for the DTensors of a product that ranks divide, forward and backward, in kernels: 1.4
and 2.6 ms more a layer of seven in rehearsals of Llama-3.2-1B and Llama-3.1-8B; it was not measured."""
_ROUND_BYTES = (16.0, 5.0, 10.0)
"""Of HBM traffic in a round for each byte of the queries, forward and backward, and for each of keys and
values, backward: sums in fp32 (the same functions)."""


class Fsdp2Step(EngineStep):
    """FSDP2's part."""

    def data_parallel(self, strategy: Strategy) -> Flow:
        """Gathers of each micro-batch, and the reduction at the end."""
        settings = fsdp2(strategy.settings)
        shards = self._shards(strategy)
        way = self._spread.route(shards, strategy.tensor_parallel)
        weights, trainable = self._spread.rank_weights(strategy)
        groups = self._shape.layers + _GROUPS_BESIDE_LAYERS
        gathers = self._gathers(settings)
        per_micro = way.seconds(
            gathers * self._gathered_bytes(settings) * weights, messages=round(gathers * groups)
        )
        gradients = trainable * self._reduced_bytes(settings)
        per_step = way.seconds(gradients, messages=groups)
        if settings.replicas > 1:
            outer = self._spread.route(settings.replicas, shards * strategy.tensor_parallel)
            per_step += outer.seconds(gradients / shards, passes=2, messages=groups)
        return Flow(
            route=way
            if shards > 1
            else self._spread.route(settings.replicas, shards * strategy.tensor_parallel),
            per_micro=per_micro, per_step=per_step, overlapped=True, overlapped_at_end=True,
        )  # fmt: skip

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """More host time of a layer: forward, backward, recomputation."""
        c, again = self._constants, self._gathers(fsdp2(strategy.settings)) - 1.0
        gather = c.fsdp2_gather_seconds + c.fsdp2_tensor_seconds * self._spread.tensors_of_a_layer
        rounds = strategy.sequence_parallel if strategy.sequence_parallel > 1 else 0
        divided = 6 + self._shape.gated if strategy.is_loaded_in_parts else 0
        kernel = c.launch_seconds / c.launch_kernels if c.launch_kernels else 0.0
        forward, backward = (
            (rounds * ring + divided * parts) * kernel
            for ring, parts in zip(_ROUND_KERNELS, _PART_KERNELS, strict=True)
        )
        return (
            c.fsdp2_hook_seconds + gather + forward,
            c.fsdp2_hook_seconds + again * gather + backward,
            forward,
        )

    def shared_sequences(self, strategy: Strategy) -> tuple[float, str]:
        """Exchange of context parallelism: keys and values of a layer are gathered or go round in each pass,
        their gradients go round in fp32. None of it is taken to hide behind attention."""
        shared, settings = strategy.sequence_parallel, strategy.settings
        way = self._spread.route(shared, 1)
        forwards = 2 if strategy.checkpointing == "full" else 1
        tokens, seconds = settings.micro_batch * self._job.row_tokens, 0.0
        for stack in self._shape.stacks:
            gathers = way.seconds(settings.parameter_bytes * tokens * stack.kv_width)
            sends = way.seconds(_GRADIENT_BYTES * tokens * stack.kv_width, messages=shared)
            merged = settings.parameter_bytes * tokens / self._hbm  # bytes of a round are of a rank's share
            forward = gathers + merged * _ROUND_BYTES[0] * stack.attention_width
            backward = gathers + sends
            backward += merged * (_ROUND_BYTES[1] * stack.attention_width + _ROUND_BYTES[2] * stack.kv_width)
            seconds += stack.layers * (forwards * forward + backward)
        return (seconds if shared > 1 else 0.0), way.kind

    @property
    def more_all_reduces(self) -> int:
        """Each product that is cut by columns has the gradient of its input summed by itself: of queries,
        keys and values, and of an MLP's one or two (transformers, distributed/tensor_parallel.py:163)."""
        return 2 + self._shape.gated

    def hooks(self, strategy: Strategy) -> float:
        """Host time of the reductions, per micro-batch."""
        tensors = self._spread.tensors(strategy)
        return self.reductions(strategy) * self._constants.fsdp2_reduce_seconds * tensors

    def gradients(self, strategy: Strategy) -> float:
        """GPU time of the copies that gathers and reductions make, per micro-batch.

        A gather casts the shards into its buffer, and copies out of it into each parameter; a reduction
        copies the gradients into its own, and casts what comes to the dtype of the shards
        (``_fsdp_collectives.py``, ``foreach_all_gather``, ``foreach_all_gather_copy_out`` and
        ``foreach_reduce``). Gradients of several micro-batches are added up before.
        """
        settings, shards = fsdp2(strategy.settings), self._shards(strategy)
        weights, trainable = self._spread.rank_weights(strategy)
        wide, reduced = settings.parameter_bytes, self._reduced_bytes(settings)
        gathered = self._gathered_bytes(settings)
        gather = (settings.master_bytes / wide + 1) * gathered / shards + 2 * gathered * (shards > 1)
        reduce = wide + reduced + (reduced + settings.master_bytes) / shards
        often = self.reductions(strategy)
        size = self._gathers(settings) * gather * weights
        size += (often * reduce + (1 - often) * 3 * wide) * trainable
        return size / (_COPY_SHARE * self._hbm)

    def optimizer(self, strategy: Strategy) -> float:
        """A fused Adam over the shards, and the norm of their gradients; launches alone under an offload."""
        c, settings = self._constants, strategy.settings
        tensors = self._spread.tensors(strategy)
        kernels = max(c.fsdp2_step_seconds * tensors, self._spread.stepped_one_by_one(strategy, tensors))
        per_element = _FUSED_ADAM_BYTES + (_CLIPPING_BYTES if settings.gradient_clipping else 0.0)
        on_gpu = self._spread.owned(strategy) * (1 - self.hosted(strategy))
        return c.fsdp2_fixed_seconds + max(kernels, per_element * on_gpu / self._hbm)

    def hosted(self, strategy: Strategy) -> float:
        """Share of a rank's optimizer step that the host makes."""
        return 1.0 if strategy.settings.offloads else 0.0

    def offloaded_gradients(self, strategy: Strategy, owned: float) -> tuple[float, float]:
        """Bytes of gradients that go to the host once a step, as wide as the shards, and none in between."""
        return fsdp2(strategy.settings).master_bytes * owned, 0.0

    def _shards(self, strategy: Strategy) -> int:
        return max(1, strategy.zero_ranks // fsdp2(strategy.settings).replicas)

    def _gathers(self, settings: Fsdp2Settings) -> float:
        return 2.0 if settings.reshard_after_forward else 1.0

    def _gathered_bytes(self, settings: Fsdp2Settings) -> float:
        """Bytes of a weight as it travels, packed ones as they are kept."""
        return self._spread.weight_bytes * settings.parameter_bytes / 2

    def _reduced_bytes(self, settings: Fsdp2Settings) -> int:
        return DTYPE_BYTES.get(settings.reduce_dtype or "", settings.parameter_bytes)
