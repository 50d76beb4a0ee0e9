"""A strategy with less headroom than its estimate may be off by: every command says "may fit" alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.command import as_json, call, move_elsewhere

JOB = ("--params", "14b", "--method", "lora", "--offload-optimizer", "none", "--offload-param", "none",
       "--gpu", "l4", "--gpus", "1")  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", ["size", "plan"])
def test_what_would_make_it_fit_says_may_fit_where_a_plan_with_it_does(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, refusal = call(capsys, command, *JOB)
    assert code == 3
    advice = re.search(r"\(--gpus (\d+)\): .*?\(may fit: (.*? headroom)\)", " ".join(refusal.split()))
    assert advice is not None and "barely" not in refusal, refusal
    more = (*JOB[:-1], advice[1])
    code, out, _ = call(capsys, "plan", *more)
    assert code == 0 and "May fit: " in out and f" per GPU, {advice[2]}\n" in out
    size = as_json(capsys, "size", *more)
    assert f" per GPU, may fit: {advice[2]})" in size["answer"][0]
    assert [row.get("surely_fits") for row in size["sizes"]] == [False, False]


def test_a_kind_that_only_may_fit_is_named_after_one_that_surely_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--params", "14b", "--method", "lora", "--gpu", "l4,a100-80gb", "--host-ram", "76GiB")
    size = as_json(capsys, "size", *words)
    first, _, second = size["answer"][0].partition("; ")
    assert "fewest GPUs: 1 × a100-80gb (" in first and "l4 (with offload, may fit: " in second
    assert {row["gpu"] for row in size["sizes"] if row["gpus"] == 1 and row.get("surely_fits")} == {
        "a100-80gb"
    }
    traced = as_json(capsys, "size", "--model", "qwen3-8b", "--method", "lora", "--gpu", "a100-40gb",
                     "--margin", "0")  # fmt: skip
    assert "barely: " in traced["answer"][0] and traced["sizes"][0]["surely_fits"] is True
