"""Rehearsals of a training loop of the catalogue's models, as a user's script writes it."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass

from zerokit.catalog import gpus
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.profile import Variant
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings

GPU = "h100-sxm-80gb"
ALLOCATOR = "expandable_segments:True"
"""Without, a block keeps a remainder of up to 1 MiB, which no replay counts."""
PHASES = ("init", "forward", "backward", "step")


@dataclass(frozen=True, slots=True)
class RehearsedCase(ABC):
    """A model of the catalogue, ranks, and the script's options."""

    model: str
    ranks: int
    options: str = ""

    def value(self, option: str, default: str) -> str:
        """What the options say after one of them."""
        words = shlex.split(self.options)
        return words[words.index(option) + 1] if option in words else default

    @property
    @abstractmethod
    def job(self) -> Job:
        """What is trained."""

    @property
    @abstractmethod
    def settings(self) -> TrainingSettings:
        """What the engine is told."""

    @property
    def variant(self) -> Variant:
        """Whose trace it takes."""
        return Variant.of(self.job, self.strategy)

    @property
    def strategy(self) -> Strategy:
        """How."""
        checkpointing = "full" if "--checkpointing" in self.options else "none"
        shared, parts = int(self.value("--cp", "1")), int(self.value("--tp", "1"))
        return Strategy(
            settings=self.settings, data_parallel=self.ranks // shared // parts, tensor_parallel=parts,
            sequence_parallel=shared, checkpointing=checkpointing,
        )  # fmt: skip

    @property
    def cluster(self) -> Cluster:
        """Where."""
        return Cluster(gpu=gpus.load(GPU), gpus=self.ranks)
