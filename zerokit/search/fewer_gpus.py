"""Fewer GPUs than there are, where that is faster: gradients cross more links the more GPUs share them."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Candidate
from zerokit.search.explain import gain_words, strategy_words
from zerokit.search.search import search
from zerokit.search.strategies import Space
from zerokit.timing.step_time import TimeModel
from zerokit.units import format_seconds
from zerokit.values import replace

_PACE = {
    "network": "the network",
    "link": "the link between GPUs",
    "launch": "the host, which launches as many kernels for a smaller batch per GPU,",
}
"""What makes fewer GPUs faster: of the bounds of a step, those that do not shrink with their number."""


def halves(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with half of its GPUs, a quarter and so on, on as few of its nodes as hold them."""
    gpus = cluster.gpus
    while gpus % 2 == 0:
        gpus //= 2
        least = -(-gpus // cluster.gpus_per_node)
        nodes = next(n for n in range(least, gpus + 1) if gpus % n == 0)
        if nodes > cluster.nodes:
            return
        yield replace(cluster, gpus=gpus, nodes=nodes)


def fastest_with_fewer(space: Space, best: Candidate) -> Space | None:
    """The space of those fewer GPUs that do the same global batch fastest; None: all of them do.

    ``best``: the fastest with all GPUs. Only links and launches make fewer GPUs faster, so
    nothing is asked where something else sets the pace.
    """
    if best.time.bound_by not in _PACE:
        return None
    fastest, seconds = None, best.time.step_seconds
    for cluster in halves(space.cluster):
        smaller = on_cluster(space, cluster)
        if smaller.timing.least_seconds(space.precision) > seconds:
            break  # and with half of these GPUs it only becomes more
        ranked = search(smaller, top=1, limit_seconds=seconds).ranked
        if ranked and ranked[0].time.step_seconds < seconds:
            fastest, seconds = smaller, ranked[0].time.step_seconds
    return fastest


def on_cluster(space: Space, cluster: Cluster) -> Space:
    """The same job and global batch on other GPUs."""
    time = space.timing
    timing = TimeModel(space.shape, space.job, cluster, time.stack, time.calibration, time.trainable)
    return replace(space, cluster=cluster, timing=timing)


def left_idle(best: Candidate, on_all: Candidate, cluster: Cluster) -> str:
    """That the plan does not use all GPUs, what that gains, and how it would."""
    used = best.strategy.world_size
    verb = "is" if used == 1 else "are"
    return (
        f"{used} of the {cluster.gpus} GPUs {verb} used and {cluster.gpus - used} left idle, which is "
        f"{gain_words(best, on_all)} faster; ⟨all_gpus⟩ plans for all"
    )


def why_idle(on_all: Candidate) -> str:
    """Why not all GPUs are used, and what would give all of them work."""
    return (
        f"{_PACE[on_all.time.bound_by]} sets the pace of the best plan for all GPUs "
        f"({strategy_words(on_all.strategy)}, {format_seconds(on_all.time.step_seconds)} a step); "
        "a larger ⟨global_batch⟩ gives all of them work"
    )


def would_be_faster(best: Candidate, on_all: Candidate, cluster: Cluster) -> str:
    """What a plan that uses all GPUs misses."""
    strategy = best.strategy
    return (
        f"{gain_words(best, on_all)} faster with {strategy.world_size} of the {cluster.gpus} GPUs "
        f"({strategy_words(strategy)}): {_PACE[on_all.time.bound_by]} sets the pace; then plan with "
        f"⟨gpus⟩ {strategy.world_size} ⟨global_batch⟩ {strategy.global_batch}"
    )
