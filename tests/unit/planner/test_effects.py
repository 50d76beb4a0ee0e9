"""An option that cannot change the answer is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.cli import run

ONE = ("--model", "llama-3.2-1b", "--gpus", "8", "--gpu", "h200", "--seq-len", "2048")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--zero", "2", "--persistence", "1m"),
        ("--zero", "0", "--reduce-bucket", "1m"),
        ("--zero", "1", "--sub-group", "1m"),
        ("--inference", "--optimizer", "Lion"),
        ("--inference", "--checkpointing", "full"),
        ("--inference", "--zero", "2"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_what_could_change_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], command: str, wrong: tuple[str, ...]
) -> None:
    assert run([command, *ONE, *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == "" and wrong[-2] in err


@pytest.mark.parametrize(
    ("option", "edit"),
    [
        (("--zero", "3"), "zero_optimization.stage (3 now)"),
        (("--persistence", "1m"), "stage3_param_persistence_threshold (not set now)"),
        (("--reduce-bucket", "1m"), "zero_optimization.reduce_bucket_size (not set now)"),
        (("--overlap-comm", "off"), "zero_optimization.overlap_comm (not set now)"),
        (("--micro-batch", "4"), "train_micro_batch_size_per_gpu (2 now)"),
        (("--optimizer", "Lion"), 'optimizer.type ("AdamW" now)'),
        (("--global-batch", "8"), "train_batch_size (16 now)"),
        (("--nvme", "/a"), "offload_optimizer.nvme_path (not set now)"),
        (("--precision", "fp16"), "bf16.enabled (true now) and fp16.enabled (not set now)"),
        (("--offload-optimizer", "none"), "offload_optimizer.device (not set now)"),
    ],
)  # fmt: skip
def test_what_a_file_decides_is_refused_beside_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: tuple[str, str], edit: str
) -> None:
    config = {
        "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
    }  # fmt: skip
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    assert run(["estimate", *ONE, "--deepspeed", str(path), *option]) == 2
    err = capsys.readouterr().err
    assert f"{option[0]}: the file of --deepspeed decides it: set " in err
    assert edit in err and f"in {path}, or leave out --deepspeed" in err


@pytest.mark.parametrize(
    ("command", "words", "named"),
    [
        ("plan", (*ONE, "--zero", "auto", "--persistence", "1m"), "--persistence 1m: only ZeRO-3 reads it"),
        ("plan", (*ONE, "--nvme", "/nvme"), "--nvme /nvme: nothing is offloaded to it"),
        ("size", (*ONE[:2], "--gpu", "h200", "--sub-group", "20m"), "--sub-group 20m: only ZeRO-3 reads it"),
        ("size", (*ONE[:2], "--gpu", "h200", "--network", "5GB"), "--network 5GB: not used, one node"),
    ],
)
def test_what_the_chosen_strategy_does_not_read_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, words: tuple[str, ...], named: str
) -> None:
    out = ("--out", str(tmp_path)) if command == "plan" else ()
    assert run([command, *words, *out, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["assumptions"]
    assert any(note.startswith(named) for note in notes), notes
