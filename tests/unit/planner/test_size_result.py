"""What the answer of a sizing says beside its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import as_json


def test_the_answer_says_where_the_states_go(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = ("size", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--gpus", "2", "--method", "full")
    body = as_json(capsys, *job, "--nvme", str(tmp_path))
    (row,) = (row for row in body["sizes"] if row["gpus"])
    assert "optimizer offload to nvme" in row["why"] and "weight offload" not in row["why"]
    assert "2 × h100-sxm-80gb and offload to NVMe (" in body["answer"][0]


def test_a_faster_strategy_is_named_before_one_that_barely_fits_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = as_json(
        capsys, "size", "--model", "qwen3-14b", "--method", "lora", "--gpu", "rtx-4090", "--vram", "24GiB"
    )
    without, offloading = body["sizes"]
    assert without["gpus"] == offloading["gpus"]
    assert offloading["gpu_hours_per_1e9_tokens"] < without["gpu_hours_per_1e9_tokens"]
    assert "2 × rtx-4090 with offload to host memory (" in body["answer"][0]
    barely = f"({without['min_vram_bytes'] / 2**30:.1f} GiB required, barely: "
    assert f", or without, slower {barely}" in body["answer"][0]
    assert "offload" not in body["next"]  # plan chooses the same
