"""TRL's SFT script, unmodified, logging to four trackers at once: memory by phase stands beside its losses.

In an environment of its own, with the trackers' own libraries; none of them needs a network.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.corpus_scripts.environments import python_with
from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.tinyjob import make_model, make_rows, texts
from zerokit.cli import run as zerokit

needs("deepspeed")
needs("trl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
LIBRARIES = ("tensorboard", "wandb", "mlflow-skinny", "trackio")
PHASES = {f"zerokit/peak_host_rss_gib/{phase}" for phase in ("forward", "backward", "step")}
READ_EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [each.step for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""
READ_TRACKIO = """
import json, sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute("select metrics from metrics order by step")
print(json.dumps([sorted(json.loads(metrics)) for metrics, in rows]))
"""


def test_memory_stands_beside_the_losses(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python = python_with(tmp_path_factory.mktemp("environments"), "trackers", *LIBRARIES)
    plan = ["plan", "--params", "1m", "--device", "cpu", "--gpus", "2", "--zero", "2", "--precision", "fp32",
            "--micro-batch", "1", "--gradient-accumulation", "1", "--seq-len", "32", "--checkpointing",
            "none", "--out", str(tmp_path / "plan")]  # fmt: skip
    assert zerokit(plan) == 0
    make_model(tmp_path / "model")
    make_rows(tmp_path / "data", texts())
    variables = {
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "TENSORBOARD_LOGGING_DIR": "tb", "WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "TRACKIO_DIR": str(tmp_path / "trackio"),
        "GRADIO_ANALYTICS_ENABLED": "False", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    words = ["--plan", "plan", "-m", "trl.scripts.sft", "--model_name_or_path", "model", "--dataset_name",
             "data", "--output_dir", "out", "--max_steps", "3", "--logging_steps", "1", "--max_length", "32",
             "--report_to", "all", "--save_strategy", "no"]  # fmt: skip
    code, out, err = Run(python, tmp_path, words, variables).end(900)
    assert code == 0, out + err

    def read(program: str, path: Path) -> object:
        done = subprocess.run([str(python), "-c", program, str(path)], capture_output=True, check=True)
        return json.loads(done.stdout)

    scalars = read(READ_EVENTS, tmp_path / "tb")
    assert isinstance(scalars, dict)
    assert all(scalars[tag] == [1, 2, 3] for tag in ("train/loss", *PHASES))
    (mlflow,) = (tmp_path / "mlruns").glob("*/*/metrics")
    for name in ("loss", *PHASES):
        assert [line.split()[2] for line in (mlflow / name).read_text().splitlines()] == ["1", "2", "3"]
    (database,) = (path for path in (tmp_path / "trackio").glob("*.db"))
    rows = read(READ_TRACKIO, database)
    assert isinstance(rows, list)
    assert [set(row) >= {"train/loss", *PHASES} for row in rows[:3]] == [True] * 3
    (wandb,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    text = wandb.read_bytes()
    assert all(text.count(name.encode()) >= 3 for name in ("train/loss", *PHASES))
