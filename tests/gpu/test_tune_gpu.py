"""``zerokit tune`` on this machine's GPUs: the example under DeepSpeed, predicted beside measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
# large enough that the GPU, not the host, is what takes the time
MODEL = {**json.loads((ROOT / "examples" / "tiny-llama.json").read_text()), "hidden_size": 2048,
         "intermediate_size": 5632, "num_hidden_layers": 12, "num_attention_heads": 16,
         "num_key_value_heads": 16, "vocab_size": 32000, "max_position_embeddings": 2048}  # fmt: skip


@pytest.mark.parametrize("gpus", [1, 2])
def test_tuning_on_gpus(tmp_path: Path, gpus: int) -> None:
    observed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    if observed.count("GPU ") < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    job = ("--model", "config.json", "--gpus", str(gpus), "--seq-len", "1024", "--global-batch", "8")
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }

    def zerokit(command: str, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", command, *job, "--json", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=550,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        body: dict[str, Any] = json.loads(done.stdout)
        return body

    script = (str(ROOT / "examples" / "train_causal_lm.py"), "--model", "config.json", "--seq-len", "1024",
              "--steps", "1000")  # fmt: skip
    body = zerokit("tune", "--top", "2", "--steps", "8", *script)
    for trial in body["trials"]:
        print(json.dumps({k: v for k, v in trial.items() if k not in ("strategy", "script_arguments")}))
        assert (trial["outcome"], trial["counts"], trial["steps"]) == ("stopped", True, 8), trial
        assert trial["memory"] == "gpu" and trial["predicted_step_seconds"] > 0
        assert trial["measured_peak_bytes"] == pytest.approx(trial["predicted_peak_bytes"], rel=0.05)
    seconds = {trial["trial"]: trial["measured_step_seconds"] for trial in body["trials"]}
    assert body["fastest"] == min(seconds, key=lambda number: seconds[number])
    assert body["calibration"]["kept"] == 2
    later = zerokit("plan")
    assert any("step times from the measured steps of 2 strategies" in note for note in later["assumptions"])
    best = later["chosen"]["estimate"]["step_seconds"]
    assert best == pytest.approx(min(seconds.values()), rel=0.02) or best < min(seconds.values())
    left = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert left.stdout.strip() == ""
