"""A run whose steps were skipped is told of, and a loss scale that is being found is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.training import training_problems


def logs(skipped: int, steps: int) -> dict[int, RankLog]:
    end = {"type": "end", "rank": 0, "steps": steps, "skipped_steps": skipped}
    return {0: RankLog(rank=0, path=Path("rank-00000.jsonl"), records=[end])}


@pytest.mark.parametrize(("skipped", "steps"), [(0, 10), (2, 5), (5, 100)])
def test_a_healthy_run(skipped: int, steps: int) -> None:
    assert training_problems(logs(skipped, steps)) == []


def test_all_steps_skipped() -> None:
    (text,) = training_problems(logs(10, 10))
    assert "all 10 optimizer steps were skipped (rank 0): the weights never changed" in text


def test_many_steps_skipped() -> None:
    (text,) = training_problems(logs(4, 10))
    assert "4 of 10 optimizer steps were skipped" in text


@pytest.mark.parametrize(
    ("learning", "text"),
    [
        ({"same": 12}, "the loss is the same to the last digit (rank 0, 12 backward passes)"),
        ({"same": 12, "zero_gradients": 12}, "the gradients are zero (rank 0, the last 12 steps)"),
        ({"not_finite": 3}, "the loss is not finite (rank 0, the last 3 backward passes)"),
    ],
)
def test_what_is_seen_of_the_training(learning: dict[str, int], text: str) -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = learning
    (told,) = training_problems(known)
    assert told.startswith(text)


@pytest.mark.parametrize("learning", [{"same": 5}, {"not_finite": 1}, {"same": "x"}, 5])
def test_too_little_to_tell(learning: object) -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = learning
    assert training_problems(known) == []


def test_no_ranks() -> None:
    assert training_problems({}) == []
