"""An option that cannot change the answer is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    assert f"{option[0]}: {path} decides it: set " in err
    assert edit in err and f" in it, or leave out {option[0]}\n" in err


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


REFUSED: list[dict[str, Any]] = [
    {"zero_optimization": {"stage": 2, "offload_optimzer": {"device": "cpu"}}},
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "fp16": {"enabled": True}},
]
IGNORED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"stage": 2, "offload_param": {"device": "cpu"}}, {"stage": 2}),
    ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, {"stage": 0}),
    (
        {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}},
        {"stage": 1, "offload_optimizer": {"device": "cpu"}},
    ),
]


@pytest.mark.parametrize("body", REFUSED)
def test_a_file_that_check_refuses_is_not_estimated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: dict[str, Any]
) -> None:
    """In check's own words, with its fix."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, **body}))
    assert run(["check", str(path), "--json"]) == 2
    errors = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["severity"] == "error"]
    assert run(["estimate", *ONE, "--deepspeed", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and errors
    for error in errors:
        assert f"{path}:{error['line']}:{error['column']}: error: {error['message']}" in err
        assert f"fix: {error['fix']}" in err


@pytest.mark.parametrize(("zero", "followed"), IGNORED)
def test_what_deepspeed_ignores_is_left_out_and_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, zero: dict[str, Any], followed: dict[str, Any]
) -> None:
    path, answers = tmp_path / "ds.json", []
    for block in (zero, followed):
        path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": block}))
        assert run(["estimate", *ONE, "--deepspeed", str(path), "--json"]) in (0, 3)
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["per_rank"] == answers[1]["per_rank"]
    assert answers[0]["host_bytes_per_node"] == answers[1]["host_bytes_per_node"]
    said = [note for note in answers[0]["assumptions"] if "estimated so" in note]
    assert len(said) == 1 and str(path) in said[0]
    assert not any("estimated so" in note for note in answers[1]["assumptions"])
