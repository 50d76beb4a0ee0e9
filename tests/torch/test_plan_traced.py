"""Plans and estimates of models that the catalogue has no profile of, so that they are traced on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import as_json
from tests.support.hub_cache import put
from tests.support.packages import needs
from zerokit.cli import run

needs("transformers")

TINY = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
JOB = ("--gpus", "1", "--gpu", "h200", "--json")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)  # no nvidia-smi of this machine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_cpu_ranks_are_planned_where_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.json").write_text(json.dumps(TINY))
    body = as_json(capsys, "plan", "--model", "config.json", "--seq-len", "128", "--device", "local")
    chosen = body["chosen"]
    assert chosen["data_parallel"] == 2
    assert chosen["precision"] in ("bf16", "fp32")
    assert chosen["offload_optimizer"] == "none"
    assert chosen["estimate"]["step_seconds"] is None
    assert chosen["estimate"]["host_bytes_per_node"] >= 2 * chosen["estimate"]["peak_allocated_bytes"]
    assert chosen["deepspeed_config"]["optimizer"]["params"]["torch_adam"] is True
    assert any("CPU ranks" in note for note in body["assumptions"])
    assert all("GPU memory" not in other["why"] and "0.0 GiB" not in other["why"]
               for other in body["alternatives"])  # fmt: skip
    assert not any(" 0.0 GiB" in line for line in body["advice"])


@pytest.mark.slow
def test_a_model_of_the_cache_is_used_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    path = put(tmp_path, "somebody/tiny-llama-of-mine")
    assert run(["estimate", "--model", "somebody/tiny-llama-of-mine", *JOB]) == 0
    by_name = json.loads(capsys.readouterr().out)
    assert run(["estimate", "--model", str(path), *JOB]) == 0
    assert by_name["peak_allocated_bytes"] == json.loads(capsys.readouterr().out)["peak_allocated_bytes"]
    assert run(["estimate", "--model", "somebody/tiny-llama-of-mine", *JOB[:-1]]) == 0
    assert capsys.readouterr().out.startswith("somebody/tiny-llama-of-mine on ")


@pytest.mark.slow
def test_the_modules_that_adapters_go_on_change_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """The catalogue's profiles hold the default modules; others are traced."""
    lora = ("estimate", "--model", "llama-3.2-1b", "--gpus", "8", "--gpu", "h200", "--method", "lora")
    every = as_json(capsys, *lora)
    one = as_json(capsys, *lora, "--lora-targets", "q_proj")
    assert one["peak_allocated_bytes"] < every["peak_allocated_bytes"]
