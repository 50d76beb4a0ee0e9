"""``zerokit check --deep``: DeepSpeed and Accelerate are asked."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.support.check_runs import GOOD, check, write

# not importorskip: DeepSpeed prints when it is imported, into the output under test
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)


@needs_deepspeed
def test_deep_asks_deepspeed_for_every_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path, "good.json", {**GOOD, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})
    bad = write(
        tmp_path, "bad.json", {**GOOD, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}}
    )
    (tmp_path / "deepspeed.py").write_text("raise SystemExit('imported')")
    code, out, _ = check(good, bad, "--deep", "--world-size", "4", "--json", capsys=capsys)
    said = [item for item in json.loads(out)["findings"] if item["rule"] == "deepspeed-says"]
    assert code == 2 and len(said) == 1
    assert said[0]["path"] == bad
    assert "ranks 0, 1, 2, 3 of 4" in said[0]["message"] and "not divisible" in said[0]["message"]


@pytest.mark.slow
@needs_deepspeed
def test_deepspeeds_and_accelerates_classes_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "ds.json", GOOD)
    head = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
    good = write(tmp_path, "good.yaml", f"{head}  deepspeed_config_file: {tmp_path / 'ds.json'}\n")
    bad = write(
        tmp_path, "bad.yaml", f"{head}  deepspeed_config_file: {tmp_path / 'ds.json'}\n  zero_stage: 2\n"
    )
    code, out, _ = check(good, bad, "--deepspeed-classes", "--json", capsys=capsys)
    (said,) = [item for item in json.loads(out)["findings"] if item["rule"] == "accelerate-says"]
    assert (code, said["path"]) == (2, bad)
    assert "variables will be ignored" in said["message"]
