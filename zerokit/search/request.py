"""What a plan is wanted for, and the memory models that it is chosen with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.search.space import Pins
from zerokit.timing.constants import HUGGING_FACE, Calibration, Constants
from zerokit.values import frozen_dataclass

MemoryModel = Callable[[Job, Strategy, Cluster], MemoryEstimate]
LeastVram = Callable[[Job, Strategy, Cluster], int]
"""A bound from below on what the memory model will say, at a fraction of its cost."""
HostBytes = Callable[[Job, Strategy, Cluster], int | None]
"""Exactly what the memory model will say of the host, at a fraction of its cost; ``None``: ask the model."""


@frozen_dataclass
class Request:
    """What a plan is wanted for. ``precision`` is ``auto`` or one of the job's.

    Attributes:
        memory: the memory model, bound to the model's profile or shape.
        least_vram: a cheap bound from below on its ``min_vram_bytes``.
        host_bytes: its ``host_bytes_per_node``, without the rest.
        without_traces: the request with memory models that trace nothing more.
        exact_memory: the same for every rank, not only the worst: for the plan that is shown.
        all_gpus: use them all, even where fewer are faster.
        timed: whether step times may be shown (they are not, for CPU ranks).
    """

    shape: ModelShape
    job: Job
    cluster: Cluster
    memory: MemoryModel
    least_vram: LeastVram | None = None
    host_bytes: HostBytes | None = None
    exact_memory: MemoryModel | None = None
    without_traces: Callable[[Request], Request] | None = None
    pins: Pins = field(default_factory=Pins)
    precision: str = "auto"
    constants: Constants = HUGGING_FACE
    calibration: Calibration | None = None
    all_gpus: bool = False
    timed: bool = True
    on_cpu: bool = False
    assumptions: tuple[str, ...] = ()

    def for_remarks(self) -> Request:
        """The request as it is searched for remarks: none of them is worth the minute of a trace."""
        return self if self.without_traces is None else self.without_traces(self)
