"""On which hardware step times were compared with measured ones, and what of a job was measured on none."""

from __future__ import annotations

from zerokit.domain.strategy import Strategy
from zerokit.timing.step_time import TimeModel

_MEASURED = frozenset({"h200"})
"""By this project, on one node of one to eight GPUs (docs/predictions.md)."""
_PUBLISHED = frozenset({"a100-40gb", "a100-80gb", "h100-sxm-80gb"})
"""By others, on one node and on several: llm-foundry's and Megatron-DeepSpeed's runs, which ``python -m
benchmarks.planner`` compares."""


_SEVERAL_NODES, _TENSOR_ACROSS_NODES = "several nodes", "tensor parallel across nodes"
_UNDER_FSDP2 = "GPUs under FSDP2"
NO_GPUS = (_SEVERAL_NODES, _TENSOR_ACROSS_NODES, _UNDER_FSDP2)
"""Of the parts, those that are not a kind of GPU."""


def measured_on_no_machine(model: TimeModel, strategy: Strategy) -> tuple[str, ...]:
    """The parts of the hardware that no step time was ever compared on: ``b200``, ``several nodes``.

    Nothing where the very strategy ran on this machine; its GPU is known where its products were measured.
    """
    cluster, calibration = model.cluster, model.calibration
    if calibration.tuned is not None and strategy.family in calibration.tuned.by_family:
        return ()
    name = cluster.gpu.name
    parts = []
    if name not in _MEASURED | _PUBLISHED and not calibration.matmul_flops and not calibration.layer_factors:
        parts.append(name)
    if cluster.nodes > 1 and name not in _PUBLISHED:
        parts.append(_SEVERAL_NODES)
    if strategy.tensor_parallel > cluster.gpus_per_node:
        parts.append(_TENSOR_ACROSS_NODES)
    if strategy.engine == "fsdp2":  # held to rehearsals of the library alone
        parts.append(_UNDER_FSDP2)
    return tuple(parts)
