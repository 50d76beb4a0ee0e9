"""A job spread over ranks: what each holds and over what it reaches the others, whatever the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.timing.collectives import Flow, Route, route
from zerokit.timing.constants import Calibration, Constants


class Spread:
    """One model and job on one cluster.

    Attributes:
        trainable: elements of the weights that get gradients, before anything divides them.
        weight_bytes: of a weight in 16-bit training, quantised ones counted as they are kept.
    """

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
            stack.layers * 3 * len(gemm.adapted(targets)) / max(1, len(gemm.modules))
            for stack in self.shape.stacks
            for gemm in stack.gemms
        )
        return round(sum(counts))

    def _tensors_of_the_model(self) -> int:
        norms = 1 if self.shape.gated else 4
        return sum(stack.layers * (2 * len(stack.gemms) + norms) for stack in self.shape.stacks)


class EngineStep(ABC):
    """One engine's part of the steps of one model and job on one cluster; it states what it does. Seconds.

    Args:
        spread: what is the same under every engine.
    """

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._shape, self._job, self._constants = spread.shape, spread.job, spread.constants
        self._hbm = spread.cluster.gpu.hbm_bytes_per_second * spread.constants.hbm_efficiency

    @abstractmethod
    def data_parallel(self, strategy: Strategy) -> Flow:
        """What crosses between data-parallel ranks."""

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """More host time of a layer: forward, backward, recomputation."""
        return 0.0, 0.0, 0.0

    def reductions(self, strategy: Strategy) -> float:
        """How often gradients are reduced, per micro-batch."""
        return 1 / strategy.settings.gradient_accumulation

    def waits(self, strategy: Strategy) -> float:
        """How often the host waits for all ranks, per micro-batch."""
        return 0.0

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
