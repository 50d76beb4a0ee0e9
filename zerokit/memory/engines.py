"""The engine that trains, as an estimate sees it: one module for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from zerokit.domain.hardware import Gpu
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory import deepspeed_engine
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.step import Instant, RankBytes
from zerokit.notes import Note


class Engine(Protocol):
    """What an estimate asks; ``ranks``: that share all that is divided."""

    def not_replayed(self, job: Job, strategy: Strategy) -> str:
        """What of this training is not replayed; empty: all is."""

    def knows(self, profile: ModelProfile) -> bool:
        """Whether it is known how the engine divides such a model."""

    def copied_logit_bytes(self, job: Job, strategy: Strategy) -> int:
        """Bytes that each logit takes where forward ends, what the model returns included; 0: nothing copies
        it there."""

    def settings_of_replay(self, strategy: Strategy, gpu: Gpu) -> TrainingSettings:
        """The settings with all that the engine's own bytes do not depend on made equal."""

    def layers_kept(self, model: RankModel, settings: TrainingSettings) -> int | None:
        """Layers at either end of a stack that tell of all; None: every layer counts."""

    def rank_bytes(self, model: RankModel, settings: TrainingSettings, ranks: int, rank: int) -> RankBytes:
        """One optimizer step of one rank."""

    def compose(
        self,
        model: RankModel,
        settings: TrainingSettings,
        ranks: int,
        rank: int,
        instants: Mapping[str, Instant | None],
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase."""

    def flattening_bytes(self, model: RankModel, settings: TrainingSettings) -> int:
        """Allocated in init where the card has room for it, and on the host where it has not."""

    def listed_ranks(
        self, model: RankModel, settings: TrainingSettings, ranks: int, *, every: bool
    ) -> tuple[int, ...]:
        """Ranks that can have the highest peak; ``every``: all that differ."""

    def host_parts(
        self,
        model: RankModel,
        settings: TrainingSettings,
        ranks: int,
        world_size: int,
        room: int,
        per_node: int,
    ) -> dict[HostComponent, int]:
        """Host bytes of one of ``per_node`` ranks; ``room``: what its card has for tensors during init."""

    def least_bytes(self, model: RankModel, settings: TrainingSettings, ranks: int) -> tuple[int, int]:
        """(bytes at every instant of a step, gradients at its end), without any rounding."""

    def assumptions(self, settings: TrainingSettings) -> tuple[Note, ...]:
        """What estimates take for granted of how the script calls the engine."""


def engine_of(settings: TrainingSettings) -> Engine:
    """The one whose settings these are; only what is asked for is imported."""
    if settings.engine == "fsdp2":
        from zerokit.memory.fsdp2 import engine

        return engine
    if settings.engine == "ddp":
        from zerokit.memory.ddp import engine as plain

        return plain
    return deepspeed_engine
