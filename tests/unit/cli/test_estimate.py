"""``zerokit estimate`` with a DeepSpeed file: what it says of the script that the file is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import call
from zerokit import cli


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "the file decides every setting of this estimate; a Trainer must be given the same: "
            "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --bf16 True "
            "--learning_rate 0.001",
        ),
        (
            dict.fromkeys(("train_micro_batch_size_per_gpu", "train_batch_size"), "auto"),
            "of a script that does what the file leaves to it, a Trainer with "
            "--per_device_train_batch_size 8, and with the values that the file has: "
            "--gradient_accumulation_steps 2 --bf16 True",
        ),
        ({"gradient_accumulation_steps": None}, "the file decides every setting"),  # derived from the two
        ({"bf16": {"enabled": "auto"}}, "what the file leaves to it, a Trainer with --bf16 True, and with"),
    ],
)
def test_what_a_file_leaves_to_the_script_is_told_apart_from_what_it_has(
    changes: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "train_batch_size": 16}
    optimizer = {"type": "AdamW", "params": {"lr": 0.001}}
    whole = sizes | {"bf16": {"enabled": True}, "optimizer": optimizer, "zero_optimization": {"stage": 2}}
    config = {key: value for key, value in (whole | changes).items() if value is not None}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    _, out, _ = call(
        capsys, "estimate", "--params", "1b", "--gpus", "2", "--gpu", "h200", "--deepspeed", str(path)
    )
    assert said in " ".join(out.split())


@pytest.mark.parametrize("option", ["--tp", "--sp", "--cp", "--checkpointing", "--offload-param"])
def test_what_a_plan_would_search_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--model", "llama-3.2-1b", "--gpus", "8", "--gpu", "h200", "--zero", "3")
    code, _, err = call(capsys, "estimate", *job, option, "auto")
    assert code == 2 and f"{option} auto: an estimate is of one strategy" in err


def test_a_file_estimated_for_cpu_ranks_is_launched_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}))
    job = ("estimate", "--params", "1m", "--gpus", "2", "--device", "cpu", "--deepspeed", str(path))
    _, out, _ = call(capsys, *job)
    assert "--device cpu --gpus 2 train.py" in " ".join(out.replace("\\\n", " ").split())


def test_the_nearest_change_that_fits_is_named(tmp_path, capsys):
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}}')
    words = ["estimate", "--model", "llama-3.1-8b", "--method", "lora", "--gpus", "1", "--gpu", "l40s"]
    assert cli.run([*words, "--deepspeed", str(file)]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "What would make it fit - --checkpointing full: " in out
    assert cli.run([*words, "--micro-batch", "4", "--checkpointing", "full"]) == 0
