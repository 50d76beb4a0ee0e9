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


def _two_ranks(*learning: dict[str, object]) -> dict[int, RankLog]:
    return {
        rank: RankLog(rank=rank, path=Path("x.jsonl"), records=[{"type": "tick", "learning": known}])
        for rank, known in enumerate(learning)
    }


def test_ranks_that_read_the_same_batches() -> None:
    known = {"first_losses": "ab", "data_parallel": 2}
    (told,) = training_problems(_two_ranks(known, known))
    assert told.startswith("all 2 ranks computed the same losses from the first on")


@pytest.mark.parametrize(
    "known",
    [
        [{"first_losses": "ab", "data_parallel": 2}, {"first_losses": "cd", "data_parallel": 2}],
        [{"first_losses": "ab", "data_parallel": 2}, {}],
        [{"first_losses": "ab", "data_parallel": 1}] * 2,  # tensor parallel peers
        [{"first_losses": "ab", "data_parallel": 2}],  # the other rank's record is missing
        [{"first_losses": 5, "data_parallel": 2}] * 2,
    ],
)
def test_ranks_with_data_of_their_own(known: list[dict[str, object]]) -> None:
    assert training_problems(_two_ranks(*known)) == []


def test_no_ranks() -> None:
    assert training_problems({}) == []


def _calls(operation: str, *shapes: list[int]) -> dict[int, RankLog]:
    """Ranks whose third collective has these shapes."""
    found = {}
    for rank, shape in enumerate(shapes):
        calls = [
            {"number": n, "count": n, "operation": operation, "group": "0", "step": n, "phase": "other",
             "shape": shape if n == 3 else [4], "dtype": "float32"}
            for n in (1, 2, 3, 4)
        ]  # fmt: skip
        groups = {"0": {"ranks": list(range(len(shapes))), "calls": 4}}
        record = {"type": "calls", "rank": rank, "groups": groups, "calls": calls}
        found[rank] = RankLog(rank=rank, path=Path(f"rank-{rank}.jsonl"), records=[record])
    return found


def test_a_collective_of_unlike_sizes_that_ended_is_told() -> None:
    """NCCL does not notice: on two H200s such a run ends well as a process."""
    (told,) = training_problems(_calls("all_reduce", [4], [8]))
    assert told.startswith("rank 0 entered all_reduce of [4] float32 (step 4) and rank 1 all_reduce of [8]")
    logs = _calls("all_gather_into_tensor", [4], [8])
    assert "make the tensor the same" in training_problems(logs)[0]
    for rank, phase in enumerate(("forward", "eval")):
        (logs[rank].last("calls") or {})["calls"][0]["phase"] = phase
    (told,) = training_problems(logs)
    assert "rank 1 entered all_gather_into_tensor of [4] float32 in eval" in told
    assert "let every rank do it" in told


@pytest.mark.parametrize(
    ("operation", "shapes"),
    [("all_reduce", ([4], [2, 2])), ("all_gather", ([4], [8])), ("send", ([4], [8])), ("all_reduce", ([4],))],
)
def test_collectives_that_may_differ(operation: str, shapes: tuple[list[int], ...]) -> None:
    assert training_problems(_calls(operation, *shapes)) == []
