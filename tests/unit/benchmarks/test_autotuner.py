"""The comparison with DeepSpeed's autotuner: what it asks, what it reads, what it leaves behind."""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import autotuner
from benchmarks.autotuner import Benchmark

ROOT = Path(__file__).resolve().parents[3]
GIB = 2**30
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "train_batch_size": 8,
    "zero_optimization": {"stage": 1},
}


def options(folder: Path, **changed: Any) -> argparse.Namespace:
    values = {"folder": folder, "model": "llama-3.2-1b", "seq_len": 2048, "global_batch": 32, "gpus": 1,
              "device": "cuda", "card_gib": None, "stages": "all", "top": 3, "tune_steps": 8, "steps": 12,
              "seconds": 60.0, "run_seconds": 10.0, "without": []}  # fmt: skip
    return argparse.Namespace(**values | changed)


@pytest.fixture
def an_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.parent.mkdir()
    line = "0, GPU-0a2b3c4d-0000-1111-2222-333344445555, NVIDIA H200, 143771, 4, 570.133.20"
    tool.write_text(f"#!/bin/sh\necho '{line}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")


def test_the_autotuner_gets_the_plans_job_without_what_it_chooses(tmp_path: Path, an_h200: None) -> None:
    benchmark = Benchmark(options(tmp_path / "b", stages="0,1"))
    benchmark.answers["plan"] = plan = benchmark.plan()
    config = benchmark.autotuner_config(tmp_path)
    planned = plan["deepspeed_config"]
    assert config["optimizer"] == planned["optimizer"] and config["bf16"] == planned["bf16"]
    assert config["zero_optimization"] == {"stage": [0, 1]}
    assert not {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"} & set(
        config
    )
    assert config["autotuning"]["max_train_batch_size"] == planned["train_batch_size"] == 32
    assert plan["own_tokens_per_second"] > 10_000
    assert "--limit-bytes" not in benchmark.script(5, tmp_path, "none")


def test_a_smaller_card_holds_every_run_to_it(tmp_path: Path, an_h200: None) -> None:
    benchmark = Benchmark(options(tmp_path / "b", card_gib=40))
    benchmark.answers["plan"] = benchmark.plan()
    script = benchmark.script(5, tmp_path, "none")
    assert 37 * GIB < int(script[script.index("--limit-bytes") + 1]) < 40 * GIB
    assert "smaller card" in benchmark.tune()["error"]


def test_a_result_of_another_job_is_not_gone_on_with(tmp_path: Path) -> None:
    Benchmark(options(tmp_path)).save()
    Benchmark(options(tmp_path, seconds=5.0))
    with pytest.raises(SystemExit, match="another job"):
        Benchmark(options(tmp_path, seq_len=1024))


def _experiment(results: Path, name: str, throughput: float | None, stderr: str) -> None:
    """What the autotuner's scheduler and the engine leave of a run."""
    folder = results / name
    folder.mkdir(parents=True)
    for file in ("exp.json", "ds_config.json"):
        (folder / file).write_text(json.dumps(CONFIG | {"autotuning": {"enabled": True}}))
    (folder / "stdout.log").touch()
    (folder / "stderr.log").write_text(stderr)
    if throughput is not None:
        (folder / "metrics.json").write_text(json.dumps({"throughput": throughput, "rank": 0}) + "\n")


def test_the_autotuners_runs_are_read(tmp_path: Path) -> None:
    _experiment(tmp_path, "z0_gas2_tmbspg4", 12.5, "")
    _experiment(tmp_path, "z0_gas1_tmbspg8", None, "a\ntorch.OutOfMemoryError: CUDA out of memory\nb\n")
    first, second = autotuner.experiments(tmp_path)
    assert (first["name"], first["throughput"], first["error"]) == ("z0_gas2_tmbspg4", 12.5, None)
    assert first["deepspeed_config"] == CONFIG
    assert second["throughput"] is None and second["error"].startswith("torch.OutOfMemoryError")


def test_nothing_of_a_command_outlives_its_limit(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/child; wait"
    done = autotuner.run(["sh", "-c", script], autotuner.fresh(tmp_path / "run"), 0.5)
    child = int((tmp_path / "child").read_text())
    assert done.code is None and done.why.startswith("stopped after")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _lives(child):
        time.sleep(0.05)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    """A zombie that nobody waits for is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_configuration_comes_as_a_file_or_as_the_autotuner_hands_it_on(tmp_path: Path) -> None:
    job = pytest.importorskip("benchmarks.autotuner_job", reason="needs torch and deepspeed")
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(CONFIG))
    encoded = base64.urlsafe_b64encode(json.dumps(CONFIG).encode()).decode()
    assert job.deepspeed_config(str(path)) == job.deepspeed_config(encoded) == CONFIG


def test_the_table() -> None:
    measured = {"median_step_seconds": 0.5, "tokens_per_second": 32768.0, "peak_allocated_bytes": [3 * GIB]}
    answer = {"seconds": 90.0, "finished": False, "runs": [{}, {}], "deepspeed_config": CONFIG,
              "checkpointing": "full", "own_tokens_per_second": None, "measured": measured}  # fmt: skip
    left_out = {"error": "not for a smaller card"}
    failed = answer | {"error": "no run succeeded"}
    text = autotuner.table({"autotuner": answer, "tune": left_out, "plan": failed}).splitlines()
    assert text[1].split() == [
        "autotuner", ">", "90", "s", "2", "ZeRO-1,", "4", "×", "2,", "full", "checkpointing",
        "0.500", "32768", "-", "3.0",
    ]  # fmt: skip
    assert text[2].endswith("not for a smaller card") and text[3].endswith("no run succeeded")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tabulate") is None, reason="the autotuner needs the package tabulate"
)
def test_all_three_on_a_cpu_rank(tmp_path: Path) -> None:
    model = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
             "max_position_embeddings": 256, "tie_word_embeddings": False}  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(model))
    words = {"model": tmp_path / "model.json", "device": "cpu", "seq-len": 64, "global-batch": 4, "top": 1,
             "stages": 0, "steps": 6, "seconds": 540, "run-seconds": 120}  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.autotuner", tmp_path / "b"]
    command += [text for name, value in words.items() for text in (f"--{name}", str(value))]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=590
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads((tmp_path / "b" / "result.json").read_text())["answers"]
    assert all(answer["measured"]["tokens_per_second"] > 0 for answer in answers.values()), answers
    assert answers["autotuner"]["finished"] and len(answers["tune"]["runs"]) == 1
    assert len([one for one in answers["autotuner"]["runs"] if one["throughput"]]) >= 2
