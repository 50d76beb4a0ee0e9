"""A job spread over ranks: what each holds and over what it reaches the others, whatever the engine."""

from __future__ import annotations

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.timing.collectives import Route, route
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
