"""The engine that trains, as an estimate sees it: one class for each (``zerokit.memory.engines``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.hardware import Gpu
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.step import Instant, RankBytes
from zerokit.notes import Note
from zerokit.values import replace

S = TypeVar("S", bound=TrainingSettings)
"""Settings of one engine."""


class Engine(ABC, Generic[S]):
    """What an estimate asks; an engine states what it does. ``ranks``: that share all that is divided."""

    @abstractmethod
    def not_replayed(self, job: Job, strategy: Strategy) -> str:
        """What of this training was not compared with rehearsals of the library; empty: all was."""

    def knows(self, profile: ModelProfile) -> bool:
        """Whether it is known how the engine divides such a model: modules are taken as they are."""
        return True

    def copied_logit_bytes(self, job: Job, strategy: Strategy) -> int:
        """Bytes that each logit takes where forward ends, what the model returns included; 0: nothing copies
        it there."""
        return 0

    def sharing_sequences(
        self, profile: ModelProfile, trace: ActivationTrace, settings: S, degree: int, checkpointed: bool
    ) -> tuple[ActivationTrace, str]:
        """The trace of a sequence's share with what ``degree`` ranks exchange of it, and how, in words.
        ``checkpointed``: a layer's forward pass keeps nothing."""
        return trace, "and nothing that they exchange"

    def settings_of_replay(self, strategy: Strategy, gpu: Gpu) -> S:
        """The settings with all that the engine's own bytes do not depend on made equal."""
        return _shared_settings(strategy.settings)  # type: ignore[return-value]

    def layers_kept(self, model: RankModel, settings: S) -> int | None:
        """Layers at either end of a stack that tell of all; None: gradients add up over every layer."""
        return None

    @abstractmethod
    def rank_bytes(self, model: RankModel, settings: S, ranks: int, rank: int) -> RankBytes:
        """One optimizer step of one rank."""

    @abstractmethod
    def compose(
        self, model: RankModel, settings: S, ranks: int, rank: int, instants: Mapping[str, Instant | None]
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase."""

    def flattening_bytes(self, model: RankModel, settings: S) -> int:
        """Allocated in init where the card has room for it, and on the host where it has not."""
        return 0

    def listed_ranks(self, model: RankModel, settings: S, ranks: int, *, every: bool) -> tuple[int, ...]:
        """Ranks that can have the highest peak; ``every``: all that differ."""
        return (0,)

    @abstractmethod
    def host_parts(
        self, model: RankModel, settings: S, ranks: int, world_size: int, room: int, per_node: int
    ) -> dict[HostComponent, int]:
        """Host bytes of one of ``per_node`` ranks; ``room``: what its card has for tensors during init."""

    @abstractmethod
    def least_bytes(self, model: RankModel, settings: S, ranks: int) -> tuple[int, int]:
        """(bytes at every instant of a step, the most of gradients at its end and of what else adds up over
        the layers), without any rounding."""

    def assumptions(self, settings: S) -> tuple[Note, ...]:
        """What estimates take for granted of how the script calls the engine."""
        return ()


@lru_cache(maxsize=1024)
def _shared_settings(settings: TrainingSettings) -> TrainingSettings:
    return replace(settings, micro_batch=1, gradient_accumulation=min(settings.gradient_accumulation, 2))
