"""The engines that an estimate knows; only what is asked for is imported."""

from __future__ import annotations

from functools import cache
from typing import Any

from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.engine import Engine


def engine_of(settings: TrainingSettings) -> Engine[Any]:
    """The one whose settings these are."""
    return _ENGINES[settings.engine]()


@cache
def _deepspeed() -> Engine[Any]:
    from zerokit.memory.deepspeed_engine import DeepSpeed

    return DeepSpeed()


@cache
def _fsdp2() -> Engine[Any]:
    from zerokit.memory.fsdp2.engine import Fsdp2

    return Fsdp2()


@cache
def _ddp() -> Engine[Any]:
    from zerokit.memory.ddp.engine import Ddp

    return Ddp()


_ENGINES = {"deepspeed": _deepspeed, "fsdp2": _fsdp2, "ddp": _ddp}
