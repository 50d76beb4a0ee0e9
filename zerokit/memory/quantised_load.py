"""What loading a quantised model takes under ZeRO-3, which no estimate counts."""

from __future__ import annotations

from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.units import GIB


def loads_whole(strategy: Strategy, job: Job) -> bool:
    """Whether every GPU holds all quantised weights for a while that ZeRO-3 then shares out.

    Transformers leaves ``zero.Init`` out for a quantised model (``modeling_utils.py:1435``) and loads it onto
    the current GPU (``quantizer_bnb_4bit.py``, ``update_device_map``), 5.23.
    """
    is_shared = strategy.settings.zero.stage == 3 and strategy.zero_ranks > 1
    return job.packed_base_bytes is not None and is_shared


def loaded_whole(weight_bytes: float, strategy: Strategy, job: Job) -> tuple[str, ...]:
    """A note on it, where it is so. ``weight_bytes``: of all weights, as they are stored."""
    if not loads_whole(strategy, job):
        return ()
    return (
        "not counted: Transformers 5.23 loads the quantised model whole on each GPU, "
        f"{weight_bytes / GIB:.1f} GiB, before ZeRO-3 shares it out: a smaller card runs out of memory",
    )
