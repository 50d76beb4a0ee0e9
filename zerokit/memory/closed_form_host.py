"""Host memory in closed form: what a rank keeps there of weights, gradients and states."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.memory.components import HostComponent
from zerokit.memory.host import pinned, process_bytes
from zerokit.memory.rank_model import ElementBytes
from zerokit.memory.replay.model_states import managed_bytes, optimizer_bytes

_FP32 = 4.0


def host_of_rank(
    shape: ModelShape, strategy: Strategy, trainable: float, weight_bytes: float
) -> dict[HostComponent, int]:
    """Bytes of one rank in host memory and on NVMe, by component.

    Args:
        shape: the model.
        strategy: stage, offload, ranks.
        trainable: elements with gradients, before ZeRO divides them.
        weight_bytes: of all weights, before ZeRO divides them.
    """
    settings, ranks = deepspeed(strategy.settings), strategy.zero_ranks
    parts: dict[HostComponent, int] = {HostComponent.PROCESS: process_bytes(strategy.world_size)}
    owned = trainable / ranks
    if managed := managed_bytes(settings, [int(owned if settings.divides_states else trainable)]):
        parts[HostComponent.OPTIMIZER_STATES] = managed
    parts |= _optimizer(strategy, owned)
    if settings.divides_weights:
        parts |= _parameters(shape, strategy, owned, weight_bytes)
    return {name: size for name, size in parts.items() if size}


def _optimizer(strategy: Strategy, owned: float) -> dict[HostComponent, int]:
    """What an offloaded optimizer keeps there of the rank's ``owned`` elements."""
    settings = deepspeed(strategy.settings)
    zero, states = settings.zero, optimizer_bytes(settings)
    optimizer, wide = zero.offload_optimizer, ElementBytes.of(settings)

    def of_owned(element_bytes: float, pin: bool = optimizer.pin_memory) -> int:
        return pinned(int(element_bytes * owned), pin)

    if optimizer.device == "none":
        return {}
    partition = {HostComponent.GRADIENT_PARTITION: of_owned(wide.accumulation)}
    group = min(int(owned), zero.sub_group_size)
    if optimizer.device == "nvme":
        return partition | {
            HostComponent.NVME_OPTIMIZER: int((2 * _FP32 + states) * owned),
            HostComponent.SWAP_BUFFERS: pinned(optimizer.buffer_count * int(_FP32 * group)),
        }
    parts = {
        HostComponent.MASTER_WEIGHTS: of_owned(wide.master, optimizer.pin_memory and zero.stage < 3),
        HostComponent.GRADIENTS: of_owned(wide.master),
        HostComponent.OPTIMIZER_STATES: int(states * owned),
    }
    if zero.stage < 3:
        return parts | {HostComponent.STAGING: of_owned(wide.parameter)}
    pieces = -(-int(owned) // max(1, group))
    grouped = pieces * pinned(group * wide.master, optimizer.pin_memory)
    return parts | partition | {HostComponent.GRADIENTS: grouped}


def _parameters(
    shape: ModelShape, strategy: Strategy, owned: float, weight_bytes: float
) -> dict[HostComponent, int]:
    """What ZeRO-3 keeps of the weights there, or passes through it."""
    settings, ranks = deepspeed(strategy.settings), strategy.zero_ranks
    offload, element_bytes = settings.zero.offload_param, settings.parameter_bytes
    if offload.device == "none":
        return {HostComponent.DEFRAGMENTATION: int(element_bytes * owned)}  # zero/utils.py defragment
    if offload.device == "nvme":
        return {
            HostComponent.NVME_PARAMETERS: int(weight_bytes / ranks),
            HostComponent.PARAMETER_BUFFERS: pinned(
                offload.buffer_count * offload.buffer_size * element_bytes
            ),
        }
    degree = strategy.tensor_parallel * strategy.pipeline_parallel
    # zero.Init pins every parameter's share by itself; the pinned blocks stay cached
    shares = ((size / degree / ranks, count) for size, count in _tensors(shape))
    return {
        HostComponent.PARAMETERS: pinned(int(weight_bytes / ranks)),
        HostComponent.PARAMETERS_WHILE_BUILT: int(
            sum(count * pinned(int(element_bytes * share), offload.pin_memory) for share, count in shares)
        ),
    }


def _tensors(shape: ModelShape) -> Iterator[tuple[float, int]]:
    """Elements of each matrix and table, and how many are alike."""
    left = float(shape.parameters)
    for stack in shape.stacks:
        for gemm in stack.gemms:
            left -= stack.layers * gemm.parameters
            if gemm.stacked:
                yield float(gemm.parameters), stack.layers
            elif gemm.fused == 3:
                keys = gemm.k * stack.kv_width / 2
                yield gemm.parameters - 2 * keys, stack.layers
                yield keys, 2 * stack.layers
            else:
                modules = gemm.copies * gemm.fused
                yield gemm.parameters / modules, modules * stack.layers
    tables = 1 if shape.tied else 2
    yield max(0.0, left) / tables, tables
