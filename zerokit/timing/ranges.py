"""Between which times a step lies, by what nobody measured: the host, the network, what moves between them.

The GPU's own work is predicted within ``KERNELS``; hosts of one kind differ by half and more, and so do
networks of clouds. What ``zerokit doctor --measure``, ``zerokit tune`` or an option says narrows the range.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.timing.constants import Calibration
from zerokit.timing.host_speed import FASTEST, SLOWEST
from zerokit.timing.step_time import TimeModel
from zerokit.values import frozen_dataclass, replace

_MEASURED = frozenset({"h200"})
"""By this project, on one node of one to eight GPUs (docs/predictions.md)."""
_PUBLISHED = frozenset({"a100-40gb", "a100-80gb", "h100-sxm-80gb"})
"""By others, on one node and on several: llm-foundry's and Megatron-DeepSpeed's runs, which ``python -m
benchmarks.planner`` compares."""


LONGEST_WITHOUT_ENGINE = 0.64
"""Measured over predicted, less one, of the worst of ten jobs on one H200 (adapters under autocast, in
``benchmarks/measure/data/trainer-files.jsonl``), whose host nobody probed."""
_SEVERAL_NODES, _TENSOR_ACROSS_NODES = "several nodes", "tensor parallel across nodes"
_TENSOR_BY_PLAN = "tensor parallel by Transformers"
NO_GPUS = (_SEVERAL_NODES, _TENSOR_ACROSS_NODES, _TENSOR_BY_PLAN)
"""Of the parts, those that are not a kind of GPU."""


def measured_on_no_machine(model: TimeModel, strategy: Strategy) -> tuple[str, ...]:
    """The parts of the hardware that no step time was ever compared on: ``b200``, ``several nodes``. Nothing
    where the very strategy ran on this machine; its GPU is known where its products were measured."""
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
    if strategy.is_loaded_in_parts:
        parts.append(_TENSOR_BY_PLAN)
    return tuple(parts)


_UNKNOWN_NETWORKS = (12.5e9, 100e9)
"""Per node, of GPUs whose nodes' network is not in the catalogue: one port of 100 Gb/s to two of 400."""
_ADAM_RATES = (2.1e9, 4.5e9)
"""Weights a second and node: 0.48 s per 1e9 on busy hosts, 0.22 at best (as ``Constants`` says)."""
_COPIES = 2.0
"""What a node copies to and from all of its GPUs at once was measured on one host: half and twice of it."""
NVME_RATES = (1e9, 7e9)
"""Bytes a second of a node's disk, both ways alike: sustained writes of a cheap one to one on PCIe 4."""
KERNELS = 0.045
"""Error of the GPU's own work: of 66 jobs on two H200s 15 ended outside the range of hosts alone, 13 of them
by less (``benchmarks/engines/h200-2gpu.jsonl``)."""
SURE = 0.2
"""A range narrower than this, of its lower end, is not worth a word: a choice."""


@frozen_dataclass
class Unmeasured:
    """One thing that a step time depends on and that is not known.

    Attributes:
        name: in words.
        fast, slow: the time model where it is as fast, and as slow, as it may be.
        told_by: what tells beside a trial run; None: nothing does.
    """

    name: str
    fast: TimeModel
    slow: TimeModel
    told_by: str | None


def unmeasured(model: TimeModel, strategy: Strategy) -> Iterator[Unmeasured]:
    """What the strategy's time depends on and nothing says."""
    calibration, cluster = model.calibration, model.cluster
    if cluster.on_cpu:
        return
    low = calibration.host_factor_low or calibration.host_factor or FASTEST
    high = calibration.host_factor_high or calibration.host_factor or SLOWEST
    probed = calibration.host_factor is not None
    yield Unmeasured(
        name="the host's speed, which varies," if probed else "the host's speed",
        told_by=None if probed else "`zerokit doctor --measure` on the GPU machine",
        fast=_with(model, _at_host(calibration, low)),
        slow=_with(model, _at_host(calibration, high)),
    )  # fmt: skip
    if (
        cluster.nodes > 1
        and not calibration.network_bytes_per_second
        and not cluster.network_bytes_per_second
    ):
        slowest, fastest = _networks(model)
        yield Unmeasured(
            name="the network", told_by="⟨network⟩",
            fast=_with(model, replace(calibration, network_bytes_per_second=fastest)),
            slow=_with(model, replace(calibration, network_bytes_per_second=slowest)),
        )  # fmt: skip
    devices = {strategy.settings.optimizer_device, strategy.settings.weights_device}
    if "nvme" in devices and not calibration.nvme_bytes_per_second:
        slowest, fastest = NVME_RATES
        yield Unmeasured(
            name="the speed of the NVMe disk", told_by=None,
            fast=_with(model, replace(calibration, nvme_bytes_per_second=fastest)),
            slow=_with(model, replace(calibration, nvme_bytes_per_second=slowest)),
        )  # fmt: skip
    if devices != {"none"}:
        is_measured = (
            calibration.host_to_device_bytes_per_second or calibration.cpu_adam_parameters_per_second
        )
        if not is_measured:
            yield Unmeasured(
                name="the speed of the host's copies and optimizer",
                told_by="`zerokit doctor --measure` on the GPU machine",
                fast=_with(model, _offloading(model, _ADAM_RATES[1], _COPIES)),
                slow=_with(model, _offloading(model, _ADAM_RATES[0], 1 / _COPIES)),
            )  # fmt: skip


def _at_host(calibration: Calibration, factor: float) -> Calibration:
    """On a host of this speed, whose ranks wait for each other as long as on the one that was probed."""
    probed, slowest = calibration.host_factor, calibration.host_factor_high
    high = factor * slowest / probed if probed and slowest else None
    return replace(calibration, host_factor=factor, host_factor_high=high)


def step_range(model: TimeModel, strategy: Strategy, memory: MemoryEstimate) -> tuple[float, float] | None:
    """Seconds of a step where all that is not measured is as fast, and as slow, as it may be. None where the
    very strategy ran here: that measured what it depends on. That of a rehearsal is its own."""
    calibrated = model.calibration.tuned or model.calibration.rehearsed
    if calibrated is not None and strategy.family in calibrated.by_family:
        return _rehearsed_range(model, calibrated.ranges.get(strategy.family), strategy, memory)
    fast = slow = model.calibration
    for part in unmeasured(model, strategy):
        fast = _merged(fast, model.calibration, part.fast.calibration)
        slow = _merged(slow, model.calibration, part.slow.calibration)
    if fast is slow:
        return None
    low, high = (
        edge.with_retries(edge.estimate(strategy), strategy, memory).step_seconds
        for edge in (_with(model, fast), _with(model, slow))
    )
    return (1 - KERNELS) * min(low, high), (1 + KERNELS) * max(low, high)


def _rehearsed_range(
    model: TimeModel, times: tuple[float, float] | None, strategy: Strategy, memory: MemoryEstimate
) -> tuple[float, float] | None:
    if times is None:
        return None
    plain = model.estimate(strategy)
    retries = model.with_retries(plain, strategy, memory).step_seconds - plain.step_seconds
    low, high = (ratio * plain.step_seconds + retries for ratio in times)
    return (low, high) if low < high else None


def turned_by(model: TimeModel, first: Strategy, second: Strategy) -> Unmeasured | None:
    """What could make the second strategy the faster of the two; None: nothing that is known of."""
    for part in unmeasured(model, second):
        for end in (part.fast, part.slow):
            if end.estimate(second).step_seconds < end.estimate(first).step_seconds:
                return part
    return None


def _with(model: TimeModel, calibration: Calibration) -> TimeModel:
    return TimeModel(model.shape, model.job, model.cluster, model.stack, calibration, model.trainable)


def _merged(onto: Calibration, base: Calibration, changed: Calibration) -> Calibration:
    """``onto`` with what ``changed`` has otherwise than ``base``."""
    names = (
        "host_factor", "host_factor_high", "network_bytes_per_second", "host_to_device_bytes_per_second",
        "device_to_host_bytes_per_second", "cpu_adam_parameters_per_second", "nvme_bytes_per_second",
    )  # fmt: skip
    values = {name: getattr(changed, name) for name in names}
    return replace(onto, **{k: v for k, v in values.items() if v != getattr(base, k)})


def _networks(model: TimeModel) -> tuple[float, float]:
    """Networks of a node, as a calibration has it: what a collective reaches of the datasheet's rate."""
    gpu, share = model.cluster.gpu, model.stack.network_efficiency
    usual, slowest = gpu.network_bytes_per_second, gpu.slowest_network_bytes_per_second
    if usual is None:
        return _UNKNOWN_NETWORKS[0] * share, _UNKNOWN_NETWORKS[1] * share
    per_node = model.cluster.gpus_per_node
    return (slowest or usual) * per_node * share, usual * per_node * share


def _offloading(model: TimeModel, adam: float, copies: float) -> Calibration:
    c = model.stack
    return replace(
        model.calibration,
        cpu_adam_parameters_per_second=adam,
        host_to_device_bytes_per_second=c.host_to_device_bytes_per_second * copies,
        device_to_host_bytes_per_second=c.device_to_host_bytes_per_second * copies,
    )
