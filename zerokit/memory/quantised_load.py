"""What loading a quantised model takes under ZeRO-3: all of it, on every GPU."""

from __future__ import annotations

from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.units import GIB

_ADAPTER_BYTES = 4
"""Of an adapter's element: PEFT makes adapters on 16-bit weights in fp32 (``autocast_adapter_dtype``)."""
LOADED_WHOLE = "Transformers (5.17 to 5.23) loads the quantised model whole"
"""Begins what is said of it."""


def loads_whole(strategy: Strategy, job: Job) -> bool:
    """Whether every GPU holds all quantised weights for a while, of which ZeRO-3 then takes away a part.

    Transformers 5.23 leaves ``zero.Init`` out for a quantised model (``modeling_utils.py:3815``) and loads it
    onto the current GPU (``quantizer_bnb_4bit.py``, ``update_device_map``); 5.17 does the same
    (``modeling_utils.py:3741``). Rehearsed with both on two GPUs, a Llama of 0.7 B in NF4 peaks at 552 and
    555 MiB on each while it is loaded, of which all its weights are 516 and the adapters 27.
    """
    zero = strategy.settings.zero
    is_taken_away = strategy.zero_ranks > 1 or zero.offload_param.device != "none"
    return job.packed_base_bytes is not None and zero.stage == 3 and is_taken_away


def loaded_bytes(weight_bytes: float, element_bytes: int, trainable: float) -> float:
    """At the end of the load. ``weight_bytes``: with the adapters (``trainable``), as they are trained."""
    return weight_bytes + (_ADAPTER_BYTES - element_bytes) * trainable


def load_notes(weight_bytes: float, strategy: Strategy, job: Job) -> tuple[str, ...]:
    """That each GPU needs room for all weights, where ZeRO-3 does not help it."""
    if not loads_whole(strategy, job):
        return ()
    return (
        f"{LOADED_WHOLE} on each GPU, "
        f"{weight_bytes / GIB:.1f} GiB, before ZeRO-3 divides it: each must hold it, however many there are",
    )
