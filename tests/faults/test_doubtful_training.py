"""Real DeepSpeed on CPU ranks: runs that end well as processes, and are no success all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs

needs("deepspeed")
SCRIPT = Path(__file__).parents[1] / "scripts" / "doubtful.py"
SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deeds", "problems"),
    [
        (
            ("slow-loss", "zero"),
            ("the gradients are zero", "the others wait for rank 0", "spends in forward"),
        ),
        pytest.param(
            ("slow-data", "constant"),
            (
                "the learning rate was 0 in all 12 steps",
                "the loss is the same",
                "the others wait for rank 1",
                "between steps (data, logging)",
            ),
            marks=SLOW,
        ),
        pytest.param(("copy",), ("the loss is the same",), marks=SLOW),
        pytest.param(("nan",), ("all 12 optimizer steps were skipped", "the loss is not finite"), marks=SLOW),
        pytest.param(("healthy",), (), marks=SLOW),
    ],
)
def test_the_report_says_what_is_wrong(
    stub_python: Path, tmp_path: Path, deeds: tuple[str, ...], problems: tuple[str, ...]
) -> None:
    run = Run(stub_python, tmp_path, ["--num-ranks", "2", "--style", "none", str(SCRIPT), *deeds], {})
    try:
        code, _, err = run.end(240)
        report = run.report()
        outcome = ("trained_otherwise", 9) if problems else ("ok", 0)
        assert (report["outcome"], code) == outcome, err
        told = " / ".join(report["problems"])
        for text in problems:
            assert text in told
        assert report["why"] == "all 2 ranks finished" if not problems else problems[0] in report["why"]
        assert bool(report["problems"]) is bool(problems)
    finally:
        run.clean_up()


@SLOW
def test_a_collective_of_unlike_sizes_that_ended_is_told(tmp_path: Path) -> None:
    script = SCRIPT.with_name("unlike_sizes.py")
    run = Run(Path(sys.executable), tmp_path, ["--num-ranks", "2", "--style", "none", str(script)], {})
    try:
        code, _, err = run.end(240)
        report = run.report()
        assert (code, report["outcome"]) == (0, "ok"), err
        (problem,) = report["problems"]
        assert problem.startswith("rank 0 entered all_reduce of [4] float32")
        assert "rank 1 all_reduce of [8] float32: GPUs do not notice" in problem
    finally:
        run.clean_up()
