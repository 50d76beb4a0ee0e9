"""The parts of a step have one name each, wherever they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerokit
from zerokit.cli import run
from zerokit.domain import time_parts


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
        f"bound by {time_parts.BOUNDS['host']} (" in shown
        and "optimizer on the CPU" in time_parts.BOUNDS["host"]
    )


def test_every_part_of_an_estimate_has_a_name() -> None:
    parts = set(zerokit.estimate(params="1b", gpus=8, gpu="h200", zero=3).time_parts)
    assert parts <= set(time_parts.BOUNDS)
    assert len({time_parts.label(part) for part in time_parts.BOUNDS}) == len(time_parts.BOUNDS)
    assert time_parts.label("of another version") == "of another version"
