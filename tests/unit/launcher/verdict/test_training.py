"""A run whose steps were skipped is told of, and a loss scale that is being found is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.training import training_findings


def training_problems(known: dict[int, RankLog]) -> list[str]:
    return [finding.text for finding in training_findings(known)]


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


@pytest.mark.parametrize(
    ("learning", "certain"),
    [
        ({"losses": 12, "not_finite": 12}, True),
        ({"losses": 12, "not_finite": 3}, True),  # and each rank's, as what is lost is lost on all
        ({"losses": 12, "norms": 12, "zero_gradients": 12}, True),
        ({"losses": 90, "norms": 90, "zero_gradients": 30}, False),  # rewards are alike in the end (GRPO)
        ({"losses": 12, "same": 12, "norms": 12, "same_norms": 12}, True),
        ({"losses": 12, "same": 12, "norms": 12, "same_norms": 1}, False),  # a loss that is 0 on its samples
        ({"losses": 90, "same": 12, "norms": 90, "same_norms": 12}, False),
        ({"losses": 12, "same": 12}, False),  # no norm is computed: ZeRO-0 in fp32
        ({"losses": 12, "rates": 12, "zero_rates": 12}, True),
    ],
)
def test_only_what_is_so_in_nearly_the_whole_run_is_no_success(
    learning: dict[str, int], certain: bool
) -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = learning
    (finding,) = training_findings(known)
    assert finding.is_certain is certain


def test_a_rate_that_is_warmed_up_is_none_of_zero() -> None:
    known = logs(0, 12)
    known[0].records[0]["learning"] = {"losses": 12, "rates": 12, "zero_rates": 3}
    assert training_findings(known) == []


CLIPS = {"call": "clip_grad_norm_(0.1)", "limit": 0.1, "ran": 1.0, "is_norm": True, "location": "train.py:9"}


@pytest.mark.parametrize(
    ("most_norm", "more", "accepted", "certain"),
    [
        (0.5, {}, False, True),
        (0.05, {}, False, False),  # neither would have clipped
        (0.5, {"limit": 9.0, "ran": 1.0}, False, False),
        (5.0, {"limit": 9.0, "ran": 0.0}, False, False),
        (0.5, {"by_trainer": True}, False, False),  # a Trainer's default, not the script's word
        (0.5, {}, True, False),
    ],
)
def test_clipping_that_does_nothing_counts_where_a_norm_reached_it(
    most_norm: float, more: dict[str, object], accepted: bool, certain: bool
) -> None:
    known = logs(0, 12)
    known[0].records[0] |= {"learning": {"most_norm": most_norm}, "training": {"clipping": CLIPS | more}}
    (finding,) = training_findings(known, is_accepted=accepted)
    assert finding.what.startswith("train.py:9: clip_grad_norm_(0.1) does nothing under DeepSpeed")
    assert finding.is_certain is certain


@pytest.mark.parametrize("facts", [5, {"lost": 5}, {"clipping": {"call": []}}, {"saves": {}}, {"short": {}}])
def test_a_damaged_account_tells_nothing(facts: object) -> None:
    known = logs(0, 12)
    known[0].records[0]["training"] = facts
    assert training_findings(known) == []


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
