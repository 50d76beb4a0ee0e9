"""Model states: what stays allocated, and the peak while DeepSpeed sets it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.memory.components import Component
from zerokit.memory.rank_model import Layout, Precision
from zerokit.memory.replay.bf16_optimizer import runs_bf16_optimizer
from zerokit.memory.replay.optimizers import optimizer_bytes, optimizer_name
from zerokit.memory.replay.zero_1_2 import Partition

FORWARD_WORKSPACE_BYTES = 32 << 20
"""cuBLAS's workspace on Hopper, one for each thread that multiplies, from its first product on (measured)."""

CUBLAS_WORKSPACE_BYTES = 2 * FORWARD_WORKSPACE_BYTES
"""In training autograd's thread has one too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistent:
    """Bytes on the GPU between steps once the optimizer has stepped, by component."""

    components: Mapping[Component, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.components.values())


def _first_adagrad_bytes(layout: Layout, settings: DeepSpeedSettings) -> int:
    """What the engine's own Adagrad keeps: its state is made with it, of the whole model, before ZeRO-1/2
    make another of the partition (stage_1_and_2.py:948); ``engine.basic_optimizer`` is never let go."""
    if optimizer_name(settings) != "adagrad" or settings.zero.stage == 3:
        return 0
    return layout.trainable_numel * Precision.of(settings).parameter


@lru_cache(maxsize=256)
def shares(layout: Layout, ranks: int) -> tuple[int, int]:
    """(elements of this rank's ZeRO-3 shard of trainable, of frozen parameters), each padded."""
    trainable = frozen = 0
    for size, parameter in zip(layout.sizes, layout.parameters, strict=True):
        share = -(-size // ranks)
        if parameter.trainable:
            trainable += share
        else:
            frozen += share
    return trainable, frozen


@lru_cache(maxsize=256)
def share_bytes(layout: Layout, ranks: int, width: int) -> int:
    """Bytes of this rank's ZeRO-3 shard of all parameters; ``width``: of the training dtype."""
    return sum(
        -(-size // ranks) * each for size, each in zip(layout.sizes, layout.widths(width), strict=True)
    )


def second_copy_bytes(layout: Layout, zero: ZeroSettings, width: int) -> int:
    """hpZ's share of every weight inside a group, made with its partition (``_partition_param_sec``,
    runtime/zero/partition_parameters.py:1900); it lies where offloaded weights do. Read from the source, not
    compared with a run."""
    if zero.zero_hpz_partition_size <= 1 or zero.offload_param.device != "none":
        return 0
    return share_bytes(layout, zero.zero_hpz_partition_size, width)


def persistent(layout: Layout, settings: DeepSpeedSettings, part: Partition, ranks: int) -> Persistent:
    """The steady state of one rank, before a step's gradients and activations."""
    zero, width = settings.zero, Precision.of(settings)
    states = optimizer_bytes(settings)
    components: dict[Component, int] = {Component.CUBLAS_WORKSPACE: CUBLAS_WORKSPACE_BYTES}
    if layout.profile.buffer_bytes:
        components[Component.BUFFERS] = layout.profile.buffer_bytes
    if zero.stage == 3:
        trainable, _ = shares(layout, ranks)
        if zero.offload_param.device == "none":
            components[Component.PARAMETERS] = share_bytes(layout, ranks, width.parameter)
            if second := second_copy_bytes(layout, zero, width.parameter):
                components[Component.SECOND_COPY] = second
        on_gpu = sum(on_device(layout, zero, ranks))
        if zero.offload_optimizer.device == "none":
            # a copy in fp32 training too: _create_fp32_partitions compares a device with its name, in vain
            components[Component.MASTER_WEIGHTS] = trainable * width.master
            components[Component.OPTIMIZER_STATES] = trainable * states
            components[Component.GRADIENT_PARTITION] = trainable * width.accumulation
        elif on_gpu:
            components[Component.MASTER_WEIGHTS] = on_gpu * width.master
            components[Component.OPTIMIZER_STATES] = on_gpu * states
            components[Component.FP32_GRADIENT] = on_gpu * width.master
        if zero.contiguous_gradients:
            components[Component.GRADIENT_BUCKET] = zero.reduce_bucket_size * sum(
                layout.bucket_widths(settings)
            )
        return Persistent(components=components)
    components[Component.PARAMETERS] = layout.trainable_numel * width.parameter + layout.frozen_bytes(
        width.parameter
    )
    if first := _first_adagrad_bytes(layout, settings):
        components[Component.FIRST_OPTIMIZER] = first
    if zero.stage == 0:
        if width.parameter == 2:
            components[Component.MASTER_WEIGHTS] = 4 * layout.trainable_numel
        components[Component.OPTIMIZER_STATES] = states * layout.trainable_numel
        return Persistent(components=components)
    if zero.offload_optimizer.device == "none":
        components[Component.MASTER_WEIGHTS] = part.size * width.master
        components[Component.OPTIMIZER_STATES] = part.size * states
        if runs_bf16_optimizer(settings):
            components[Component.FP32_GRADIENT] = part.size * part.count * 4
    else:
        largest = layout.largest
        components[Component.OFFLOAD_BUFFER] = largest * width.parameter
    return Persistent(components=components)


def init_peak(layout: Layout, settings: DeepSpeedSettings, part: Partition, ranks: int) -> int:
    """The most allocated while ``deepspeed.initialize`` runs. Bytes.

    Below stage 3 the model comes from the CPU; at stage 3 it is built under ``deepspeed.zero.Init``.
    """
    zero, width = settings.zero, Precision.of(settings)
    parameters = layout.trainable_numel * width.parameter + layout.frozen_bytes(width.parameter)
    flat = layout.trainable_numel * width.parameter
    states = optimizer_bytes(settings)
    offload = zero.offload_optimizer.device != "none"
    if zero.stage == 3:
        return _init_stage3(layout, settings, ranks)
    if zero.stage == 0:
        if width.parameter == 4:
            return parameters
        master = 4 * layout.trainable_numel
        if settings.torch_adam:  # FP16_UnfusedOptimizer: gradients in both precisions, a foreach temporary
            return parameters + flat + 2 * master + states * layout.trainable_numel + master
        # clones and the flat copy of them; the flat copy cloned into fp32; gradients and Adam's first step
        return max(
            parameters + 2 * flat,
            parameters + flat + master,
            parameters + 2 * master + 2 * flat * states // 4,
        )
    share, master = part.size * width.parameter, part.size * width.master
    first = _first_adagrad_bytes(layout, settings)
    parameters += first
    if offload:
        # the clone is converted to fp32 on the GPU before it goes to the CPU
        largest = layout.largest * width.parameter
        return max(parameters + flat, parameters + share, parameters + largest)
    if runs_bf16_optimizer(settings):
        gradients = part.size * part.count * 4
        return max(parameters + flat, parameters + share + master, parameters + master + gradients)
    state = part.size * states if first else 0  # Adagrad's appears with it, before the first step
    return max(parameters + flat, parameters + share + master, parameters + 2 * master + state)


def _init_stage3(layout: Layout, settings: DeepSpeedSettings, ranks: int) -> int:
    zero, width = settings.zero, Precision.of(settings)
    trainable, _ = shares(layout, ranks)
    on_gpu = zero.offload_param.device == "none"
    weights = share_bytes(layout, ranks, width.parameter) if on_gpu else 0
    weights += second_copy_bytes(layout, zero, width.parameter)
    building = most_while_building(layout, ranks, on_gpu) * width.parameter
    bucket = zero.reduce_bucket_size * sum(layout.bucket_widths(settings)) if zero.contiguous_gradients else 0
    # create_reduce_and_remove_grad_hooks gathers every trainable parameter once, one after the other
    gathered = layout.largest * width.parameter
    if not on_gpu:
        gathered += -(-layout.largest // ranks) * width.parameter
    if zero.offload_optimizer.device != "none":
        return max(building, weights + bucket + gathered)
    master = converting = trainable * width.master
    if width.parameter != width.master:
        converting = _most_while_converting(sub_groups(layout, zero, ranks)) * width.master
    gradients = trainable * width.accumulation
    return max(building, weights + converting, weights + master + bucket + gradients + gathered)


def most_while_building(layout: Layout, ranks: int, on_gpu: bool) -> int:
    """Elements at most while ``zero.Init`` makes one module after the other: what is tied to another once the
    model stands is made too, after all others; adapters come last."""
    sizes = dict(zip((p.name for p in layout.parameters), layout.sizes, strict=True))
    base = [name for name in sizes if ".lora_" not in name]
    made = [(name, sizes[name]) for name in base]
    made += [(alias, sizes[name]) for alias, name in layout.profile.ties.items() if name in sizes]
    adapters = [(name, size) for name, size in sizes.items() if ".lora_" in name]
    kept = sum(-(-sizes[name] // ranks) for name in base) if on_gpu else 0
    return max(
        _most_while_sharing(made, ranks, on_gpu),
        kept + _most_while_sharing(adapters, ranks, on_gpu),
    )


def _most_while_sharing(made: Iterable[tuple[str, int]], ranks: int, on_gpu: bool) -> int:
    """Parameters of a module are whole until all are made; then each leaves its share."""
    shared = most = 0
    for _, own in groupby(made, key=lambda pair: pair[0].rpartition(".")[0]):
        whole = [size for _, size in own]
        shares = [-(-size // ranks) if on_gpu else 0 for size in whole]
        most = max(most, shared + sum(whole) + shares[0])
        shared += sum(shares)
    return most


def sub_groups(layout: Layout, zero: ZeroSettings, ranks: int) -> list[int]:
    """Elements of a rank's optimizer sub-groups, whole parameters each (``_create_fp16_sub_groups``)."""
    groups: list[int] = []
    current = 0
    for size in layout.trainable_sizes:
        current += -(-size // ranks)
        if current >= zero.sub_group_size:
            groups.append(current)
            current = 0
    return [*groups, current] if current else groups


def on_device(layout: Layout, zero: ZeroSettings, ranks: int) -> list[int]:
    """Elements of the sub-groups whose optimizer step stays on the GPU under a partial offload
    (``ratio``, ZeRO-Offload++): the first ones, rounded down (stage3.py:1100)."""
    groups = sub_groups(layout, zero, ranks)
    return groups[: int((1 - zero.offload_optimizer.ratio) * len(groups))]


def _most_while_converting(groups: list[int]) -> int:
    """``_create_fp32_partitions``: each group is converted, then cloned; the one before is held till then."""
    cloned = before = most = 0
    for group in groups:
        most = max(most, cloned + before + group, cloned + 2 * group)
        cloned, before = cloned + group, group
    return most
