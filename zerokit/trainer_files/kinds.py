"""The trainers whose files are read: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerokit.trainer_files import axolotl, llamafactory, swift, trl
from zerokit.trainer_files.says import Says
from zerokit.values import frozen_dataclass


@frozen_dataclass
class Kind:
    """How a trainer's files are read.

    Attributes:
        asks: takes what a file says.
        direct: option of a plan -> the key that says it as the option does, and older names of the key.
        checkpoints: the keys that turn activation checkpointing on, or off.
        command: the words that train with a file, which takes the place of ``FILE`` and what it trains for
            that of ``STAGE``; commands of shell scripts begin with the first of them and one of
            ``subcommands``.
    """

    asks: Callable[[Says], None]
    direct: Mapping[str, tuple[str, ...]]
    command: tuple[str, ...]
    subcommands: tuple[str, ...] = ("train",)
    checkpoints: Callable[[bool], Mapping[str, bool]] = lambda on: {"gradient_checkpointing": on}

    def command_with(self, path: str, stage: str) -> tuple[str, ...]:
        """The words that train with a file."""
        places = {"FILE": path, "STAGE": stage}
        return tuple(places.get(word, word) for word in self.command)

    def keys_of(self, setting: str, value: Any) -> Mapping[str, Any]:
        """The keys that give a setting a value; None: the file must lose the key."""
        if setting == "checkpointing":
            return self.checkpoints(value == "full")
        if setting == "deepspeed":
            return {"deepspeed": value, "fsdp": None, "fsdp_config": None, "fsdp_version": None}
        return {self.direct[setting][0]: value}


def _llamafactory_checkpoints(on: bool) -> dict[str, bool]:
    return {"disable_gradient_checkpointing": not on}


KINDS: Mapping[str, Kind] = {
    "axolotl": Kind(asks=axolotl.asks, direct=axolotl.DIRECT, command=("axolotl", "train", "FILE")),
    "llamafactory": Kind(
        asks=llamafactory.asks, direct=llamafactory.DIRECT, command=("llamafactory-cli", "train", "FILE"),
        checkpoints=_llamafactory_checkpoints,
    ),
    "swift": Kind(
        asks=swift.asks, direct=swift.DIRECT, command=("swift", "STAGE", "FILE"),
        subcommands=("sft", "pt", "rlhf"),
    ),
    "trl": Kind(asks=trl.asks, direct=trl.DIRECT, command=("trl", "STAGE", "--config", "FILE"),
                subcommands=("sft", "dpo", "reward", "kto", "grpo", "rloo")),
}  # fmt: skip
"""By the name that ``⟨from⟩`` takes: that of :func:`zerokit.trainer_files.keys.trainers`."""
