"""Requests to plan for, out of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerokit.catalog import gpus, models
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.closed_form import estimate_analytic
from zerokit.search.space import MemoryModel, Pins, Request


def request_for(
    model: str = "llama-3.1-8b", gpu: str = "h100-sxm-80gb", count: int = 8, nodes: int = 1,
    job: Job | None = None, pins: Pins | None = None, host_ram: int | None = 8 << 40,
) -> Request:  # fmt: skip
    entry = models.load(model)
    shape = from_config(entry.hf_config, name=model, parameters=entry.parameters)
    return Request(
        shape=shape,
        job=job or Job(seq_len=2048),
        cluster=Cluster(gpu=gpus.load(gpu), gpus=count, nodes=nodes, host_ram_bytes=host_ram),
        memory=analytic(shape),
        pins=pins or Pins(),
    )


class Asked(MemoryModel):
    """A function as a memory model, with bounds by their names."""

    def __init__(self, estimate: Callable[[Job, Strategy, Cluster], MemoryEstimate], **bounds: Any) -> None:
        self.estimate = estimate
        vars(self).update(bounds)

    def __call__(self, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
        return self.estimate(job, strategy, cluster)


def analytic(shape: ModelShape) -> MemoryModel:
    return Asked(lambda job, strategy, cluster: estimate_analytic(shape, job, strategy, cluster))
