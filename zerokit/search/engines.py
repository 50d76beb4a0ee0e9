"""The engine that trains, as a search sees it: one module for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.search import deepspeed_space
from zerokit.search.space import Layout, Pins, Request, Space

Placement = Any
"""Where an engine keeps what: a value of its own, which it is handed back."""
Sizes = Any
"""Of an engine's buffers, likewise."""


class Engine(Protocol):
    """What a search asks."""

    def placements(self, pins: Pins, space: Space) -> list[Placement]:
        """Placements, the simplest first; the pointless ones may be among them."""

    def variants(self, space: Space, layout: Layout, placement: Placement) -> tuple[Sizes, ...]:
        """Every setting of the sizes, the fastest first and the most frugal last."""

    def fastest(self, variants: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
        """Settings of which one is the fastest."""

    def frugal(
        self, space: Space, layout: Layout, placement: Placement, batch: tuple[int, int],
        variants: tuple[Sizes, ...],
    ) -> tuple[Sizes, ...]:  # fmt: skip
        """The settings of which one requires the least, the likeliest last; ``batch``: micro-batch and
        accumulation."""

    def settings(
        self, space: Space, layout: Layout, placement: Placement, chosen: Sizes, common: Mapping[str, Any]
    ) -> TrainingSettings:
        """The settings of one point of the space; ``common``: what any engine is told."""

    def illegal(self, space: Space, strategy: Strategy) -> str | None:
        """Why the engine refuses a strategy, or why it is pointless."""

    def least_state_bytes(self, space: Space, layout: Layout, placement: Placement) -> float:
        """Bytes of a GPU, at least, that model states take whatever the micro-batch and the sizes."""

    def most_saved_bytes(self, settings: TrainingSettings, trainable: int) -> int:
        """Bytes that other sizes can save at most."""

    def simpler(self, space: Space, fastest: Candidate) -> Iterator[Pins]:
        """Pins that leave what is simpler than a choice, the simplest first."""

    def plain(self, request: Request, layout: Layout) -> tuple[Placement, Sizes]:
        """The placement and sizes that pins fix, and plain ones where they do not.

        Raises:
            InputError: names the option that cannot be.
        """

    def probe(self, pins: Pins, gpus: int, trainable: int) -> Pins:
        """Pins of a strategy to learn from what a script takes beside its model, in which no size moves."""

    def check(self, space: Space, layout: Layout) -> None:
        """Refuse what is fixed and cannot be.

        Raises:
            InputError: names the option.
        """


ANY_ENGINE = "auto"
"""Of :class:`Pins`: all of them are searched."""
DIVIDING = ("deepspeed", "fsdp2")
"""Engines that divide what is trained, and so are planned of any model."""
ENGINES = (*DIVIDING, "ddp")


def engine_of(space: Space) -> Engine:
    """Return the one that is searched; only what is asked for is imported."""
    if space.pins.engine == "fsdp2":
        from zerokit.search import fsdp2_space

        return fsdp2_space
    if space.pins.engine == "ddp":
        from zerokit.search import ddp_space

        return ddp_space
    return deepspeed_space


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
