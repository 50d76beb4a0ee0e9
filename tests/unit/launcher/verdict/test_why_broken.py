"""What Gloo ends at once: the rank that it aborts leaves no record of its calls, the others do."""

from __future__ import annotations

from pathlib import Path
from signal import SIGABRT, SIGTERM
from typing import Any

import pytest

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.evidence import Evidence
from zerokit.launcher.verdict.rank_end import RankEnd
from zerokit.launcher.verdict.verdict import Verdict
from zerokit.launcher.verdict.why_broken import explain_failure
from zerokit.report.schema import Outcome, RankState

SAID = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 528 vs 264. Received data size"
TRAINING = ("load", "init", "forward", "backward", "step", "other")
GATHER = {"number": 9, "count": 9, "operation": "all_gather_into_tensor", "group": "0", "step": 4,
          "phase": "backward", "shape": [264], "dtype": "float32", "module": "head"}  # fmt: skip
REDUCE = {**GATHER, "operation": "all_reduce", "module": None}


def files(folder: Path, aborted: tuple[str, ...], others: tuple[str, ...], call: dict[str, Any]) -> Evidence:
    logs = {}
    for rank in range(3):
        phases = {name: {"count": 1} for name in (aborted if rank == 0 else others)}
        records = [{"type": "tick", "rank": rank, "pid": rank, "time": 1.0, "phases": phases}]
        if rank:
            records.append({"type": "calls", "rank": rank, "pid": rank, "time": 1.0, "calls": [call]})
        logs[rank] = RankLog(rank=rank, path=folder / f"rank-{rank:05d}.jsonl", records=records)
    return Evidence(expected_ranks=3, logs=logs, last_words={0: SAID})


@pytest.mark.parametrize(
    ("aborted", "others", "call", "kind"),
    [
        ((*TRAINING, "eval"), TRAINING, GATHER, "eval_on_some_ranks"),
        ((*TRAINING, "generate"), TRAINING, GATHER, "generate_on_some_ranks"),
        ((*TRAINING, "eval"), (*TRAINING, "eval"), GATHER, "different_shapes"),
        (
            (*TRAINING, "eval"),
            TRAINING,
            REDUCE,
            "different_shapes",
        ),  # nothing gathered: harmless
        (TRAINING, TRAINING, GATHER, "different_shapes"),
    ],
)
def test_unlike_sizes_are_those_of_an_evaluation_on_one_rank(
    tmp_path: Path, aborted: tuple[str, ...], others: tuple[str, ...], call: dict[str, Any], kind: str
) -> None:
    ends = [RankEnd(rank=0, state=RankState.FAILED, signal=SIGABRT, consequence=True)]
    ends += [RankEnd(rank=rank, state=RankState.TERMINATED, signal=SIGTERM) for rank in (1, 2)]
    verdict = Verdict(
        outcome=Outcome.RANK_FAILED, exit_code=10, why="", first_failure=ends[0], ends=tuple(ends)
    )
    cause = explain_failure(tmp_path, verdict, files(tmp_path, aborted, others, call))
    assert cause is not None and cause.kind == kind
    assert "rank 0 got 528 bytes where its own tensor has room for 264" in cause.what
    assert cause.ranks == (0,)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            "AssertionError: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            "pipeline_under_zero",
        ),
        (
            "AssertionError: Check batch related parameters. train_batch_size is not equal to "
            "micro_batch_per_gpu * gradient_acc_step * world_size 8 != 2 * 2 * 1",
            "other_degrees",
        ),
        ("AssertionError: 8 != 2 * 2 * 1", None),
    ],
)
def test_a_script_that_shares_its_model_is_told_from_deepspeeds_words(
    tmp_path: Path, error: str, kind: str | None
) -> None:
    first = RankEnd(rank=0, state=RankState.FAILED, error=error)
    verdict = Verdict(outcome=Outcome.RANK_FAILED, exit_code=10, why="", first_failure=first, ends=(first,))
    cause = explain_failure(tmp_path, verdict, Evidence(expected_ranks=1))
    assert (cause.kind if cause is not None else None) == kind
