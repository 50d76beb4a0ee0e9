"""The engines that a search knows, and the strategy of a point of one's space."""

from __future__ import annotations

from functools import cache

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.strategy import Strategy
from zerokit.search.engine import Engine, Placement, Sizes
from zerokit.search.space import Layout, Space


def engine_of(space: Space) -> Engine:
    """Return the one that is searched."""
    return _engine(space.pins.engine)


@cache
def _engine(name: str) -> Engine:
    # only what is asked for is imported
    if name == "fsdp2":
        from zerokit.search.fsdp2_space import Fsdp2Space

        return Fsdp2Space()
    if name == "ddp":
        from zerokit.search.ddp_space import DdpSpace

        return DdpSpace()
    from zerokit.search.deepspeed_space import DeepSpeedSpace

    return DeepSpeedSpace()


def build_strategy(
    space: Space, layout: Layout, placement: Placement, checkpointing: str, micro_batch: int,
    accumulation: int, chosen: Sizes,
) -> Strategy:  # fmt: skip
    """The strategy of one point of the space."""
    job = space.job
    by_script = not job.inference and client_optimizer(job.optimizer) is not None
    common = {
        "precision": space.precision,
        "micro_batch": micro_batch,
        "gradient_accumulation": accumulation,
        "gradient_clipping": 0.0 if job.inference else 1.0,
        "optimizer": None if job.inference or by_script else job.optimizer,
        "client_optimizer": job.optimizer if by_script else None,
        "torch_adam": space.cluster.on_cpu or (job.torch_adam and space.pins.engine != "deepspeed"),
    }
    settings = engine_of(space).settings(space, layout, placement, chosen, common)
    return Strategy(settings=settings, checkpointing=checkpointing, **layout.degrees)
