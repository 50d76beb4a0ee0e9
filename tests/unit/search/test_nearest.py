"""What is looked for where nothing fits."""

from __future__ import annotations

from tests.support.requests import request_for
from zerokit.search.nearest import more_gpus
from zerokit.search.request import Request
from zerokit.search.space import Pins


def test_more_gpus_are_looked_for_with_whole_sequences_first() -> None:
    """Each degree of each number of GPUs costs a replay of the step: 3 seconds where 1 is enough."""
    asked: list[bool] = []

    def works(request: Request) -> None:
        asked.append(request.pins.search_sequence)

    assert more_gpus(request_for(pins=Pins(search_sequence=True)), works) is None
    assert asked == [False, True]
    asked.clear()
    assert more_gpus(request_for(), works) is None
    assert asked == [False]
