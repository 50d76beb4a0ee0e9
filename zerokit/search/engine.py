"""The engine that trains, as a search sees it: one class for each (:mod:`zerokit.search.engines`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.errors import InputError
from zerokit.search.space import Layout, Pins, Request, Space

Placement = Any
"""Where an engine keeps what: a value of its own, which it is handed back."""
Sizes = Any
"""Of an engine's buffers, likewise; None: they have none."""

_OF_DEEPSPEED = {
    "zero_stage": "zero", "reduce_bucket_size": "reduce_bucket", "prefetch_bucket_size": "prefetch_bucket",
    "persistence_threshold": "persistence", "sub_group_size": "sub_group", "overlap_comm": "overlap_comm",
}  # fmt: skip
"""Pins that only DeepSpeed has, and the options that fix them."""
_NOTHING_SET = from_config({})


def load_dtype(pins: Pins, job: Job, precision: str) -> str:
    """Precision of the weights as the script loads them. Raises InputError: the one that is given is not
    trained in."""
    given = pins.load_dtype
    if given not in (None, "fp32", precision):
        raise InputError(f"⟨load_dtype⟩ {given}: with ⟨precision⟩ {precision} use that, or fp32 for autocast")
    return given or ("fp32" if job.method in job.defaults.loads_wide else precision)


class Engine(ABC):
    """What a search asks; an engine states what it does."""

    @abstractmethod
    def placements(self, pins: Pins, space: Space) -> list[Placement]:
        """Placements, the simplest first; the pointless ones may be among them."""

    def variants(self, space: Space, layout: Layout, placement: Placement) -> tuple[Sizes, ...]:
        """Every setting of the sizes, the fastest first and the most frugal last."""
        return (None,)

    def fastest(self, variants: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
        """Settings of which one is the fastest."""
        return variants

    def frugal(
        self, space: Space, layout: Layout, placement: Placement, batch: tuple[int, int],
        variants: tuple[Sizes, ...],
    ) -> tuple[Sizes, ...]:  # fmt: skip
        """The settings of which one requires the least, the likeliest last; ``batch``: micro-batch and
        accumulation."""
        return variants

    @abstractmethod
    def settings(
        self, space: Space, layout: Layout, placement: Placement, chosen: Sizes, common: Mapping[str, Any]
    ) -> TrainingSettings:
        """The settings of one point of the space; ``common``: what any engine is told."""

    def illegal(self, space: Space, strategy: Strategy) -> str | None:
        """Why the engine refuses a strategy, or why it is pointless."""
        return None

    @abstractmethod
    def least_state_bytes(self, space: Space, layout: Layout, placement: Placement) -> float:
        """Bytes of a GPU, at least, that model states take whatever the micro-batch and the sizes."""

    def most_saved_bytes(self, settings: TrainingSettings, trainable: int) -> int:
        """Bytes that other sizes can save at most."""
        return 0

    def simpler(self, space: Space, fastest: Candidate) -> Iterator[Pins]:
        """Pins that leave what is simpler than a choice, the simplest first."""
        yield from ()

    @abstractmethod
    def plain(self, request: Request, layout: Layout) -> tuple[Placement, Sizes]:
        """The placement and sizes that pins fix, and plain ones where they do not. Raises InputError: names
        the option that cannot be."""

    def probe(self, pins: Pins, gpus: int, trainable: int) -> Pins:
        """Pins of a strategy to learn from what a script takes beside its model, in which no size moves."""
        return pins

    @abstractmethod
    def check(self, space: Space, layout: Layout) -> None:
        """Refuse what is fixed and cannot be. Raises InputError: names the option."""


def refuse_deepspeeds(pins: Pins, job: Job, layout: Layout, why: str) -> None:
    """Refuse what another engine is not planned with: ``why``, and what to do. Raises InputError: names the
    option."""
    if job.inference:
        raise InputError(f"serving is not planned with ⟨engine⟩ {pins.engine}; use ⟨engine⟩ deepspeed")
    for name, option in _OF_DEEPSPEED.items():
        if getattr(pins, name) is not None:
            raise InputError(f"⟨{option}⟩ is DeepSpeed's; leave it out, or plan with ⟨engine⟩ deepspeed")
    if pins.settings != _NOTHING_SET:
        raise InputError("⟨set⟩ sets values of DeepSpeed's; leave it out, or plan with ⟨engine⟩ deepspeed")
    searched = {
        "tp": pins.search_tensor, "sp": pins.search_sequence, "pipeline_module": pins.pipeline_module
    }  # fmt: skip
    degrees = {"tp": layout.tensor, "pp": layout.pipeline, "sp": layout.sequence}
    asked = [f"⟨{name}⟩" for name, is_asked in searched.items() if is_asked]
    asked += [f"⟨{name}⟩ {degree}" for name, degree in degrees.items() if degree > 1]
    if asked:
        raise InputError(f"{asked[0]}: {why}")


ANY_ENGINE = "auto"
"""Of :class:`Pins`: all of them are searched."""
DIVIDING = ("deepspeed", "fsdp2")
"""Engines that divide what is trained, and so are planned of any model."""
ENGINES = (*DIVIDING, "ddp")
