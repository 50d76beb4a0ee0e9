"""Values that other ranks hold, where it is known that they are not ours."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from zerokit.rehearsal.process import collectives  # noqa: E402
from zerokit.rehearsal.process.machine import UnderWay  # noqa: E402


def test_ranks_gather_what_each_holds() -> None:
    ours, gathered = torch.tensor([4, 8, 4]), torch.zeros(9, dtype=torch.long)
    under_way = UnderWay()
    gather = collectives._KNOWN_VALUES["_allgather_base_"]
    gather(under_way, (gathered, ours))
    assert gathered.tolist() == [4, 8, 4] * 3  # every other rank is taken to hold what ours does
    with under_way.contributions(lambda rank: [4 * rank, 4 * rank + 4, 4]):
        gather(under_way, (gathered, ours))
    assert gathered.tolist() == [0, 4, 4, 4, 8, 4, 8, 12, 4]
    gather(under_way, (gathered, ours))
    assert gathered.tolist() == [4, 8, 4] * 3


def test_a_rank_receives_what_the_sender_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    broadcast, under_way = collectives._KNOWN_VALUES["broadcast_"], UnderWay()
    monkeypatch.setattr(torch.distributed.ProcessGroup, "unbox", lambda group: group)
    received = torch.full((3,), -1)
    with under_way.sender_holds([5, 7, 9]):
        broadcast(under_way, ([received], SimpleNamespace(rank=lambda: 0), 0))
        assert received.tolist() == [-1, -1, -1]  # it is the sender
        broadcast(under_way, ([received], SimpleNamespace(rank=lambda: 2), 0))
    assert received.tolist() == [5, 7, 9]
