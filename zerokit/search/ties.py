"""Of strategies whose predicted times differ by less than runs do, the simplest."""

from __future__ import annotations

from zerokit.domain.strategy import Candidate
from zerokit.search.headroom import is_sure
from zerokit.search.search import search
from zerokit.search.space import OffloadChoice, placements
from zerokit.search.strategies import Space
from zerokit.values import replace

NOISE = 0.02
"""Of a step, up to which two predicted times are alike. The steps of one run alone on its host differ as
much: by 0.5 to 4 % in ZeRO-1 and 2 runs of Llama-3.1-8B on four H100s and H200s, by more under ZeRO-3."""
_DEVICES = ("none", "cpu", "nvme")


def complexity(placement: OffloadChoice) -> tuple[int, int, int]:
    """Sorts by what is harder to run and to understand: weights away, states away, a higher stage."""
    return _DEVICES.index(placement.parameters), _DEVICES.index(placement.optimizer), placement.stage


def simplest(space: Space, fastest: Candidate) -> Candidate:
    """The simplest strategy that is as fast as the fastest but for :data:`NOISE`, and fits as surely; of
    these its fastest."""
    zero = fastest.strategy.settings.zero
    chosen = OffloadChoice(
        stage=zero.stage, optimizer=zero.offload_optimizer.device, parameters=zero.offload_param.device
    )
    gpu, limit = space.cluster.gpu, fastest.time.step_seconds * (1 + NOISE)
    spots = placements(space.pins, space.job, space.cluster.nvme_path is not None)
    simpler = [one for one in sorted(spots, key=complexity) if complexity(one) < complexity(chosen)]
    if zero.zero_hpz_partition_size > 1:
        simpler.append(chosen)
    for spot in simpler:
        pins = replace(
            space.pins, zero_stage=spot.stage, offload_optimizer=spot.optimizer,
            offload_param=spot.parameters, second_copy=False,
        )  # fmt: skip
        ranked = search(replace(space, pins=pins), top=1, limit_seconds=limit).ranked
        if ranked and (is_sure(ranked[0].memory, gpu) or not is_sure(fastest.memory, gpu)):
            return ranked[0]
    return fastest
