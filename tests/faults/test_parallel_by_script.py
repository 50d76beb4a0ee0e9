"""What tensor and sequence parallel, and checkpointing, need of a script; held against the real DeepSpeed.

These are the reasons why a plan offers them only when they are asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import needs
from zerokit.cli import run

needs("deepspeed")
SCRIPTS = Path(__file__).parents[1] / "scripts"
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_causal_lm.py"
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(TINY))
    return tmp_path


def plan(capsys: pytest.CaptureFixture[str], *options: str) -> None:
    common = (
        "--model",
        "config.json",
        "--device",
        "cpu",
        "--gpus",
        "2",
        "--seq-len",
        "128",
        "--micro-batch",
        "2",
    )
    assert run(["plan", *common, *options, "--out", "plan"]) == 0
    capsys.readouterr()


def dry_run(capsys: pytest.CaptureFixture[str], script: Path) -> tuple[int, str]:
    code = run(["launch", "--plan", "plan", "--device", "cpu", "--dry-run", "--accept-mismatch", str(script)])
    return code, capsys.readouterr().err


@pytest.mark.slow
def test_sequence_parallel_is_refused_to_a_raw_script(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would run on twice the batch, without sharing anything."""
    plan(capsys, "--sp", "2", "--global-batch", "2", "--checkpointing", "none")
    code, err = dry_run(capsys, SCRIPTS / "raw.py")
    assert code == 2 and "--sp 1" in err
    assert dry_run(capsys, SCRIPTS / "trainer.py")[0] == 0


def test_a_raw_script_is_told_of_tensor_parallel_batches(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(capsys, "--tp", "2", "--global-batch", "2", "--checkpointing", "none")
    assert "peers must read the same batch" in dry_run(capsys, EXAMPLE)[1]
    assert "same batch" not in dry_run(capsys, SCRIPTS / "accelerated.py")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "stages", "kind"),
    [("2", "1", "pipeline_under_zero"), ("2", "2", "other_degrees"), ("2", "0", None)],
)
def test_deepspeeds_refusal_of_a_pipeline_is_explained(
    here: Path, capsys: pytest.CaptureFixture[str], stage: str, stages: str, kind: str | None
) -> None:
    plan(capsys, "--zero", stage, "--global-batch", "4", "--precision", "fp32", "--checkpointing", "none")
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "launch", "--plan", "plan", "--device", "cpu", "--run-dir", "run",
         "--rehearsal-seconds", "0", str(SCRIPTS / "pipeline.py"), "--stages", stages],
        env=dict(os.environ), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    report = json.loads(Path("run/report.json").read_text())
    if kind is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 10, done.stderr
    assert report["hang"]["kind"] == kind
    assert "likely cause: the script" in done.stderr and "zerokit plan --pp STAGES" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "script", "error"),
    [
        ("--tp", EXAMPLE, "Data inconsistency within the TP group"),
        ("--tp", SCRIPTS / "accelerated.py", None),
        ("--tp", SCRIPTS / "trainer.py", None),
        ("--sp", SCRIPTS / "accelerated.py", "requires `position_ids` in every dataloader batch"),
        ("--sp", SCRIPTS / "trainer.py", "requires `position_ids` in every dataloader batch"),
    ],
)
def test_what_an_unmodified_script_does_under_it(
    here: Path, capsys: pytest.CaptureFixture[str], option: str, script: Path, error: str | None
) -> None:
    plan(capsys, option, "2", "--global-batch", "2", "--checkpointing", "none", "--precision", "fp32")
    model = ["--model", "config.json"] if script == EXAMPLE else []
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "launch", "--plan", "plan", "--device", "cpu", "--run-dir", "run",
         "--accept-mismatch", "--rehearsal-seconds", "0", str(script), *model, "--steps", "3"],
        env=dict(os.environ), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    report = json.loads(Path("run/report.json").read_text())
    if error is None:
        assert done.returncode == 0, done.stderr
        assert report["ranks"][0]["engine"]["tensor_parallel"] == 2
    else:
        assert done.returncode == 10 and error in report["first_failure"]["error"]
