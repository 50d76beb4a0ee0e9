"""Which ranks' recorded steps are played together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.catalog import gpus
from zerokit.rehearsal.step_time import of_rank, recorded
from zerokit.timing import operators
from zerokit.timing.operators import IssuedOperator
from zerokit.timing.recorded_step import StepTime

KERNELS = [IssuedOperator(operators.KERNEL, "add", launches=1, bytes_read=8)] * 100


def _message(name: str, *pair: int) -> list[IssuedOperator]:
    message = IssuedOperator(operators.COLLECTIVE, name, bytes_read=8, group_size=2, handle=1, ranks=pair)
    return [message, IssuedOperator(operators.JOIN, "wait", handle=1)]


def _record(folder: Path, rank: int, *before: int, after: tuple[int, ...] = ()) -> None:
    """A rank that works on what those before it send, and sends to those after it."""
    received = [event for other in before for event in _message("recv_", other, rank)]
    sent = [event for other in after for event in _message("send", rank, other)]
    recorded(folder, rank).write_text(json.dumps([*received, *KERNELS, *sent]))


def _timed(folder: Path, rank: int) -> StepTime:
    step, why = of_rank(folder, rank, gpus.load("h200"), 8, None)
    assert step is not None, why
    return step


def test_all_stages_of_a_rank_s_pipeline_are_played_once_they_are_recorded(tmp_path: Path) -> None:
    _record(tmp_path, 0, after=(2,))  # a replica's stage, whose next one nobody recorded
    _record(tmp_path, 1, after=(3,))
    _record(tmp_path, 3, 1, after=(5,))
    assert _timed(tmp_path, 3).missing == (5,) and not _timed(tmp_path, 3).together
    assert _timed(tmp_path, 1).missing == (5,)  # the next one says so
    _record(tmp_path, 5, 3)
    for rank in (1, 3, 5):
        step = _timed(tmp_path, rank)
        assert [one.rank for one in step.together] == [1, 3, 5] and not step.missing
    assert _timed(tmp_path, 0).missing == (2,)


def test_a_rank_without_messages_is_alone(tmp_path: Path) -> None:
    _record(tmp_path, 0)
    _record(tmp_path, 1, after=(2,))
    step = _timed(tmp_path, 0)
    assert not step.together and not step.missing


def test_messages_that_do_not_match_give_no_time(tmp_path: Path) -> None:
    _record(tmp_path, 0, after=(1,))
    _record(tmp_path, 1, 0, 0)
    step, why = of_rank(tmp_path, 1, gpus.load("h200"), 2, None)
    assert step is None and "no other rank comes to" in why


@pytest.mark.parametrize(
    ("written", "reason"),
    [(None, "no operators"), ("[]", "a step is timed from the third on, and the script took none")],
)
def test_without_a_recorded_step_there_is_no_time(tmp_path: Path, written: str | None, reason: str) -> None:
    if written is not None:
        recorded(tmp_path, 0).write_text(written)
    step, why = of_rank(tmp_path, 0, gpus.load("h200"), 1, None)
    assert step is None and reason in why
