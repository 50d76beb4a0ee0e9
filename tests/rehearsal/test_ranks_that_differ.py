"""Values that other ranks hold, where it is known that they are not ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from zerokit.rehearsal.process import collectives  # noqa: E402
from zerokit.rehearsal.process.machine import UnderWay  # noqa: E402
from zerokit.rehearsal.process.messages import Messages  # noqa: E402


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


def _group(rank: int) -> Any:
    return SimpleNamespace(rank=lambda: rank)


def test_a_rank_receives_what_the_sender_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    broadcast, under_way = collectives._MESSAGES["broadcast_"], UnderWay()
    machine = SimpleNamespace(under_way=under_way, messages=Messages(None, 2))
    monkeypatch.setattr(torch.distributed.ProcessGroup, "unbox", lambda group: group)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1, 2])
    received = torch.full((3,), -1)
    with under_way.sender_holds([5, 7, 9]):
        broadcast(machine, ([received], _group(0), 0))
        assert received.tolist() == [-1, -1, -1]  # it is the sender
        broadcast(machine, ([received], _group(2), 0))
    assert received.tolist() == [5, 7, 9]


def test_reductions_and_shares_of_ranks_that_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed.ProcessGroup, "unbox", lambda group: group)
    under_way, group = UnderWay(), SimpleNamespace(rank=lambda: 1, size=lambda: 3)
    under_way.operation = torch.distributed.ReduceOp.SUM
    reduce, total = collectives._KNOWN_VALUES["reduce_"], torch.tensor([4.0])
    reduce(under_way, ([total], group, None, 0))
    assert total.tolist() == [4.0]  # another rank gets the sum
    reduce(under_way, ([total], group, None, 1))
    assert total.tolist() == [12.0]
    share, shares = torch.zeros(1), [torch.tensor([float(rank)]) for rank in range(3)]
    collectives._KNOWN_VALUES["scatter_"](under_way, ([share], [shares], group))
    assert share.tolist() == [1.0]
