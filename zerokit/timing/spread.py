"""A job spread over ranks: what each holds, over what it reaches the others, how long collectives take; and
what the engine that trains adds to a step, a class for each.

Ring algorithms (Patarasuk & Yuan 2009; NCCL's "bus bandwidth"): an all-reduce of S bytes over n
ranks moves 2·S·(n−1)/n through every rank, an all-gather or reduce-scatter half of that. The
bandwidth grows with the message, β(S) = β∞·S/(S + S½). Ranks lie in the order tensor, sequence,
data, pipeline, from the inside of a node outwards, as DeepSpeed's topology has them
(``deepspeed/runtime/pipe/topology.py``, axes pipe, data, model).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.timing.constants import Calibration, Constants
from zerokit.values import frozen_dataclass

_NO_PEER_SHARE = 0.5  # without peer access every byte goes through host memory: up and down again


@frozen_dataclass
class Route:
    """One process group's way: how many ranks, over what, how fast. ``kind``: ``link`` inside a node,
    ``network`` between nodes. ``bytes_per_second``: bus bandwidth for very large messages."""

    ranks: int
    kind: str
    bytes_per_second: float
    half_bytes: float
    latency_seconds: float

    def seconds(self, size_bytes: float, *, passes: int = 1, messages: int = 1) -> float:
        """Time to move ``size_bytes`` in ``messages`` collectives; ``passes``: 1 for an all-gather or
        reduce-scatter (or all-to-all), 2 for an all-reduce."""
        if self.ranks < 2 or size_bytes <= 0:
            return 0.0
        message_bytes = size_bytes / messages
        rate = self.bytes_per_second * message_bytes / (message_bytes + self.half_bytes)
        share = (self.ranks - 1) / self.ranks
        return messages * (passes * share * message_bytes / rate + self.latency_seconds)


@frozen_dataclass
class Flow:
    """Data-parallel traffic: seconds per micro-batch, per step, and after the optimizer; ``overlapped``:
    compute hides what crosses per micro-batch; ``overlapped_at_end``: the last backward what crosses per
    step."""

    route: Route
    per_micro: float
    per_step: float
    overlapped: bool
    overlapped_at_end: bool = False
    after_step: float = 0.0


def route(
    cluster: Cluster,
    ranks: int,
    inner_ranks: int,
    constants: Constants,
    calibration: Calibration | None = None,
    share: float = 1.0,
) -> Route:
    """The way of a group of ``ranks`` whose neighbours are ``inner_ranks`` apart.

    A group that leaves the node shares the node's network with the ``inner_ranks`` (at most all of
    the node's GPUs) other groups that do so at the same time. ``share`` of the link is used.
    """
    gpu, per_node = cluster.gpu, cluster.gpus_per_node
    link = gpu.link_bytes_per_second * constants.link_efficiency
    if not gpu.peer_to_peer:
        link *= _NO_PEER_SHARE
    if calibration and calibration.allreduce_bytes_per_second:
        link = calibration.allreduce_bytes_per_second
    if ranks * inner_ranks <= per_node:
        return Route(
            ranks=ranks,
            kind="link",
            bytes_per_second=link * share,
            half_bytes=constants.half_bytes,
            latency_seconds=constants.latency_seconds,
        )
    network = cluster.node_network_bytes_per_second * constants.network_efficiency
    if calibration and calibration.network_bytes_per_second:
        network = calibration.network_bytes_per_second
    groups = min(per_node, inner_ranks)
    return Route(
        ranks=ranks,
        kind="network",
        bytes_per_second=min(link, network / groups) if inner_ranks < per_node else network / groups,
        half_bytes=constants.network_half_bytes,
        latency_seconds=constants.network_latency_seconds * (1 + ranks * inner_ranks // per_node) ** 0.5,
    )


class Spread:
    """One model and job on one cluster. ``trainable``: elements of the weights that get gradients, before
    anything divides them. ``weight_bytes``: of a weight in 16-bit training, quantised ones counted as they
    are kept."""

    def __init__(
        self,
        shape: ModelShape,
        job: Job,
        cluster: Cluster,
        constants: Constants,
        calibration: Calibration,
        trainable: int,
    ) -> None:
        self.shape = shape
        self.job = job
        self.cluster = cluster
        self.constants = constants
        self.calibration = calibration
        self.trainable = trainable
        self._routes: dict[tuple[int, int, float], Route] = {}
        self._tensors = self._tensors_of_all_stages()
        self.weight_bytes = shape.weight_bytes(2.0, job.packed_base_bytes) / shape.parameters

    def route(self, ranks: int, inner: int, share: float = 1.0) -> Route:
        """The way of a group of ranks whose neighbours are ``inner`` apart; ``share`` of the link is used."""
        key = (ranks, inner, share)
        if key not in self._routes:
            self._routes[key] = route(self.cluster, ranks, inner, self.constants, self.calibration, share)
        return self._routes[key]

    def rank_weights(self, strategy: Strategy) -> tuple[float, float]:
        """Elements of weights and of trainable ones on a rank before ZeRO divides them."""
        split = strategy.tensor_parallel * strategy.pipeline_parallel
        return self.shape.parameters / split, self.trainable / split

    def owned(self, strategy: Strategy) -> float:
        """Trainable elements that a rank's optimizer steps."""
        owned = self.rank_weights(strategy)[1]
        if strategy.settings.divides_states:
            owned /= strategy.zero_ranks
        return owned

    def tensors(self, strategy: Strategy) -> float:
        """Trainable tensors of a rank's layers, near enough: each product is two (fused here, or with a
        bias)."""
        return self._tensors / strategy.pipeline_parallel

    def stepped_one_by_one(self, strategy: Strategy, tensors: float) -> float:
        """Host time of the step of so many tensors by an optimizer that takes them one by one."""
        made = client_optimizer(strategy.settings.client_optimizer)
        return made.tensor_seconds * tensors if made else 0.0

    @property
    def tensors_of_a_layer(self) -> float:
        """Tensors of a layer, frozen ones too, near enough."""
        adapters = self._tensors if self.job.method != "full" else 0
        return (self._tensors_of_the_model() + adapters) / self.shape.layers

    def _tensors_of_all_stages(self) -> int:
        if self.job.method == "full":
            return self._tensors_of_the_model()
        targets = (self.job.lora or Lora()).targets
        counts = (
            stack.layers * 3 * len(gemm.adapted(targets)) / gemm.fused
            for stack in self.shape.stacks
            for gemm in stack.gemms
        )
        return round(sum(counts))

    def _tensors_of_the_model(self) -> int:
        norms = 1 if self.shape.gated else 4
        return sum(stack.layers * (2 * len(stack.gemms) + norms) for stack in self.shape.stacks)


class EngineStep(ABC):
    """One engine's part of the steps of one model and job on one cluster; it states what it does. Seconds.
    ``spread``: what is the same under every engine."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._shape, self._job, self._constants = spread.shape, spread.job, spread.constants
        self._hbm = spread.cluster.gpu.hbm_bytes_per_second * spread.constants.hbm_efficiency

    @abstractmethod
    def data_parallel(self, strategy: Strategy) -> Flow:
        """What crosses between data-parallel ranks."""

    def shared_sequences(self, strategy: Strategy) -> tuple[float, str]:
        """Seconds of a micro-batch in which ranks that share a sequence exchange it, and the kind of link."""
        return 0.0, "link"

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """More host time of a layer: forward, backward, recomputation."""
        return 0.0, 0.0, 0.0

    @property
    def more_all_reduces(self) -> int:
        """Count those of a layer's backward between tensor parallel ranks, beyond one for each block."""
        return 0

    def reductions(self, strategy: Strategy) -> float:
        """How often gradients are reduced, per micro-batch."""
        return 1 / strategy.settings.gradient_accumulation

    def waits(self, strategy: Strategy) -> float:
        """How often the host waits for all ranks, per micro-batch."""
        return 0.0

    def waits_for_each_micro_batch(self, strategy: Strategy) -> bool:
        """Whether the host lets the GPU finish one before it issues the next."""
        return False

    def hooks(self, strategy: Strategy) -> float:
        """Host time of Python's hooks on gradients, per micro-batch."""
        return 0.0

    @abstractmethod
    def gradients(self, strategy: Strategy) -> float:
        """GPU time of a micro-batch's copies of gradients and weights, products and link left out."""

    @abstractmethod
    def optimizer(self, strategy: Strategy) -> float:
        """The optimizer's step, but for what the host does of it."""

    def flattened(self, strategy: Strategy) -> float:
        """Elements of the gradients that the optimizer's step makes one tensor in fp32 of."""
        return 0.0

    def hosted(self, strategy: Strategy) -> float:
        """Share of a rank's optimizer step that the host makes."""
        return 0.0

    def offloaded_gradients(self, strategy: Strategy, owned: float) -> tuple[float, float]:
        """Bytes of gradients that go to the host once a step, and both ways each micro-batch."""
        return 0.0, 0.0
