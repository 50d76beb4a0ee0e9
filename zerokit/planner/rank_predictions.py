"""What is predicted for each rank, or for ranks that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.strategy import RankEstimate
from zerokit.values import frozen_dataclass

_ALL_RANKS_UP_TO = 64


@frozen_dataclass
class RankPrediction:
    """The prediction for one rank, or for a row of ranks that are alike.

    Attributes:
        rank: its number, or the first one's.
        last: the last one's, where the entry stands for several.
        peak_allocated_bytes: its ``torch.cuda.max_memory_allocated``.
        peak_phase: ``init``, ``forward``, ``backward`` or ``step``.
        phases: peak bytes in each phase.
        components: bytes live at the peak, by what they are; they sum to the peak.
    """

    rank: int
    peak_allocated_bytes: int
    peak_phase: str
    phases: Mapping[str, int]
    components: Mapping[str, int]
    last: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``per_rank``."""
        body: dict[str, Any] = {
            "rank": self.rank,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_phase": self.peak_phase,
            "phases": dict(self.phases),
            "components": dict(self.components),
        }
        return body if self.last is None else {**body, "ranks": [self.rank, self.last]}


def per_rank(ranks: tuple[RankEstimate, ...], world_size: int) -> Iterator[RankPrediction]:
    """One entry a GPU up to 64 of them; above that, or with ``world_size=0``, one for ranks alike."""
    single = 0 < world_size <= _ALL_RANKS_UP_TO
    for rank in ranks:
        for number in range(rank.first, rank.last + 1) if single else (rank.first,):
            yield RankPrediction(
                rank=number,
                last=None if single else rank.last,
                peak_allocated_bytes=rank.peak_allocated_bytes,
                peak_phase=rank.peak_phase,
                phases=rank.phases,
                components=rank.components,
            )
