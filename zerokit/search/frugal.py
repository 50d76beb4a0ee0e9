"""Which settings of a family of strategies require the least memory: what rules out all of it."""

from __future__ import annotations

from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.lower_bound import releases_gradients
from zerokit.search.space import Knobs, Layout, OffloadChoice
from zerokit.search.strategies import Space, build_strategy


def frugal_settings(
    space: Space,
    layout: Layout,
    placement: OffloadChoice,
    batch: tuple[int, int],
    settings: tuple[Knobs, ...],
) -> tuple[Knobs, ...]:
    """The settings of which one requires the least, the likeliest last.

    The last of each order of work, which overlap, the reuse distance and who owns which weights decide: any
    may hold less at the peak. Where ZeRO-1 releases gradients into its buckets, all settings that do:
    gradients larger than a bucket stay, so the smallest is not always the best.

    Args:
        batch: micro-batch and accumulation.
    """
    last = {(chosen.overlap_comm, chosen.reuse_distance, chosen.round_robin): chosen for chosen in settings}
    if placement.stage != 1 or batch[1] > 1:
        return tuple(last.values())
    strategies = (build_strategy(space, layout, placement, "none", *batch, chosen) for chosen in settings)
    releasing = [
        chosen
        for chosen, strategy in zip(settings, strategies, strict=True)
        if releases_gradients(strategy.settings)
    ]
    return tuple(dict.fromkeys([*releasing, *last.values()]))


def too_large_with_any(memory: MemoryEstimate, strategy: Strategy, cluster: Cluster, trainable: int) -> bool:
    """Whether a strategy lacks more than another order of work can save.

    Below stage 3 that is at most all gradients; at stage 3 the gathered weights that are kept for their next
    use and those fetched ahead, each at most ``max_live_parameters``.
    """
    settings = strategy.settings
    elements = trainable if settings.zero.stage < 3 else 2 * settings.zero.max_live_parameters
    most_saved = elements * settings.parameter_bytes
    return memory.min_vram_bytes - most_saved > cluster.planned_bytes
