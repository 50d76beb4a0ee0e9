"""The engines that a search knows, a row each; only what is asked for is imported."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.strategy import Strategy
from zerokit.search.engine import Engine, Placement, Sizes
from zerokit.search.space import Layout, Space

ANY_ENGINE = "auto"
"""Of :class:`Pins`: all of them are searched."""
DIVIDING = ("deepspeed", "fsdp2")
"""Engines that divide what is trained, and so are planned of any model."""
ENGINES = (*DIVIDING, "ddp")


_CLASSES = {
    "deepspeed": "deepspeed_space.DeepSpeedSpace",
    "fsdp2": "fsdp2_space.Fsdp2Space",
    "ddp": "ddp_space.DdpSpace",
}


def engine_of(space: Space) -> Engine:
    """Return the one that is searched."""
    return _engine(space.pins.engine)


@cache
def _engine(name: str) -> Engine:
    module, _, own = _CLASSES[name].rpartition(".")
    engine: Engine = getattr(import_module(f"zerokit.search.{module}"), own)()
    return engine


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
        "torch_adam": space.torch_adam,
    }
    settings = engine_of(space).settings(space, layout, placement, chosen, common)
    return Strategy(settings=settings, checkpointing=checkpointing, **layout.degrees)
