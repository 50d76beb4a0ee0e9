"""The parts of a step have one name each, wherever they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerokit
from zerokit.cli import run
from zerokit.domain import strategy


def test_the_optimizer_on_the_cpu_is_told_from_the_one_on_the_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (
        "--params 1b --gpus 1 --gpu rtx-4090 --zero 2 --offload-optimizer cpu --global-batch 1 --seq-len 512"
    )
    assert run(["plan", *job.split(), "--out", str(tmp_path / "plan"), "--explain"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "where it goes: optimizer on the CPU " in shown and ", optimizer on the GPU " in shown
    assert (
        f"bound by {strategy.BOUNDS['host']} (" in shown and "optimizer on the CPU" in strategy.BOUNDS["host"]
    )


def test_every_part_of_an_estimate_has_a_name() -> None:
    parts = set(zerokit.estimate(params="1b", gpus=8, gpu="h200", zero=3).time_parts)
    assert parts <= set(strategy.BOUNDS)
    assert len({strategy.label(part) for part in strategy.BOUNDS}) == len(strategy.BOUNDS)
    assert strategy.label("of another version") == "of another version"
