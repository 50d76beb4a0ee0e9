"""Ranks that work on what other ranks send them: stages of a pipeline above all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support.packages import needs
from tests.support.rehearsals import SCRIPTS, rehearse
from zerokit.launcher import ports

needs("deepspeed")

ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}}
BATCH = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
ZERO = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1, "reduce_bucket_size": 1_000_000}}
CHECKPOINTING = {"pipeline": {"use_reentrant": False, "activation_checkpoint_interval": 1}}


def _pipeline(folder: Path, settings: dict[str, Any], *options: str) -> list[str]:
    """The script with its configuration."""
    config = folder / "ds.json"
    config.write_text(json.dumps(settings))
    return [str(SCRIPTS / "pipeline_lm.py"), "--deepspeed_config", str(config), "--deepspeed", *options]


def _received(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("RECEIVED")]


def _on_cpus(command: list[str], ranks: int) -> list[str]:
    """What each of so many real ranks prints."""
    running = []
    with ports.reserve() as port:
        for rank in range(ranks):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DS_ACCELERATOR": "cpu"}
            running.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env=os.environ | {name: str(value) for name, value in own.items()},
                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        printed = [process.communicate(timeout=200)[0] for process in running]
    assert [process.returncode for process in running] == [0] * ranks, printed
    return printed


def _of(said: dict[str, Any], rank: int) -> dict[str, Any]:
    return next(row for row in said["ranks"] if row["rank"] == rank)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_stage_receives_what_it_receives_on_real_ranks(tmp_path: Path, dynamic: bool) -> None:
    options = ["--tell", "--stages", "3", *(["--dynamic"] if dynamic else [])]
    command = _pipeline(tmp_path, BATCH | ADAM, *options)
    real = _on_cpus(command, 3)
    code, said, errors = rehearse(
        tmp_path, "--gpu", "h200", "--gpus", "3", "--ranks", "0,1,last", "--out", str(tmp_path), *command
    )
    assert code == 0, errors
    assert said["complete"]
    assert [row["rank"] for row in said["ranks"]] == [0, 1, 2]
    for rank, name in enumerate(("output.txt", "output-rank-1.txt", "output-rank-2.txt")):
        messages = _received(real[rank])
        assert len(messages) > 10
        assert _received((tmp_path / name).read_text()) == messages, rank


@pytest.mark.slow
def test_the_last_stage_alone_rehearses_those_before_it(tmp_path: Path) -> None:
    """Four stages of two ranks each with ZeRO-1, checkpointing and an evaluation."""
    command = _pipeline(tmp_path, BATCH | ADAM | ZERO | CHECKPOINTING, "--stages", "4", "--dynamic")
    code, said, errors = rehearse(tmp_path, "--gpu", "h200", "--gpus", "8", "--rank", "7", *command)
    assert code == 0, errors
    assert said["complete"]
    assert said["repeats"]
    assert [row["rank"] for row in said["ranks"]] == [7]
    assert {"init", "forward", "backward", "step", "eval"} <= set(said["ranks"][0]["phases"])
    assert any("rank 1" in note and "rank 3" in note and "rank 5" in note for note in said["notes"])
    assert not any(guess["decides_sizes"] for guess in said["guesses"])
    # what a script reads of the loss is the last stage's: on no rank is it known
    assert any("pipeline_lm.py" in guess["location"] for guess in said["guesses"])
    assert any("stage 4 of 4" in text for text in said["warnings"])
    # the step is that of the whole pipeline: of the ranks of one replica
    assert [one["rank"] for one in said["step"]["together"]] == [1, 3, 5, 7]
    assert not any("counts no waiting" in text for text in said["warnings"])


@pytest.mark.slow
def test_the_replay_of_a_pipeline_agrees_with_its_rehearsal(tmp_path: Path) -> None:
    """Small stages, whose peak is the two buckets that ZeRO-1 has when a pipeline reduces its gradients."""
    shape = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 768,
        "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 12, "dtype": "float16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    settings = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "fp16": {"enabled": True},
        "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    command = [str(SCRIPTS / "pipeline_llama.py"), str(tmp_path), "2", "512", "--deepspeed"]
    command += ["--deepspeed_config", str(tmp_path / "ds.json")]
    code, said, errors = rehearse(tmp_path, "--gpu", "h200", "--gpus", "4", "--ranks", "0,last", *command)
    assert code == 0, errors
    estimate = zerokit.estimate(
        model=str(tmp_path), gpu="h200", gpus=4, pp=2, pipeline_module=True, zero=1, precision="fp16",
        micro_batch=1, gradient_accumulation=8, seq_len=512, checkpointing="none",
    )  # fmt: skip
    for rank in (0, 3):
        replayed = estimate.to_dict()["per_rank"][rank]["peak_allocated_bytes"]
        assert replayed == pytest.approx(_of(said, rank)["peak_allocated_bytes"], rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [2, 4])
def test_the_estimate_of_a_pipeline_s_step_agrees_with_its_rehearsal(tmp_path: Path, gpus: int) -> None:
    """Stages that the GPU paces, of one and of two replicas; rank 0's pipeline is that of its replica."""
    shape = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8, "num_attention_heads": 32,
        "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    settings = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    command = [str(SCRIPTS / "pipeline_llama.py"), str(tmp_path), "2", "2048", "--deepspeed"]
    command += ["--deepspeed_config", str(tmp_path / "ds.json")]
    code, said, errors = rehearse(
        tmp_path, "--gpu", "h200", "--gpus", str(gpus), "--ranks", "0,last", "--host-speed", "0.9", *command
    )
    assert code == 0, errors
    estimate = zerokit.estimate(
        model=str(tmp_path), gpu="h200", gpus=gpus, pp=2, pipeline_module=True, zero=1, precision="bf16",
        micro_batch=1, gradient_accumulation=8, seq_len=2048, checkpointing="none",
    )  # fmt: skip
    assert said["step_seconds"] == pytest.approx(estimate.to_dict()["step_seconds"], rel=0.05)
    first, last = said["step"]["together"]
    assert [first["rank"], last["rank"]] == [gpus // 2 - 1, gpus - 1]
    # a micro-batch's forward and backward of the first stage pass before and after the last one's work
    each = (said["step_seconds"] - first["waiting_seconds"]) / 8
    assert last["waiting_seconds"] == pytest.approx(each, rel=0.15)


def _messages(folder: Path, kind: str, *options: str) -> tuple[int, dict[str, Any], str]:
    return rehearse(folder, "--gpu", "h200", *options, str(SCRIPTS / "messages.py"), kind)


@pytest.mark.parametrize("kind", ["chain", pytest.param("objects", marks=pytest.mark.slow)])
def test_sizes_that_another_rank_sends(tmp_path: Path, kind: str) -> None:
    code, said, errors = _messages(tmp_path, kind, "--gpus", "3", "--ranks", "last,0")
    assert code == 0, errors
    assert said["complete"]
    # rank 2 has four times rank 0's rows of 1,024 floats: what goes in, what comes out, and its gradient
    more = _of(said, 2)["phases"]["forward"] - _of(said, 0)["phases"]["forward"]
    assert more == pytest.approx(3 * 4096 * 1024 * 4 * 2, rel=0.01)
    assert [one["rank"] for one in said["step"]["together"]] == [0, 1, 2]
    assert said["step"]["missing"] == []


def test_a_rank_that_others_wait_for_has_a_step_of_its_own(tmp_path: Path) -> None:
    code, said, errors = _messages(tmp_path, "chain", "--gpus", "2", "--rank", "0")
    assert code == 0, errors
    assert said["step_seconds"] > 0 and said["step"]["missing"] == [1] and said["step"]["together"] == []
    assert any("of rank 0 alone: it counts no waiting for rank 1" in text for text in said["warnings"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_number_that_the_first_rank_gathers_and_tells(tmp_path: Path, rank: int) -> None:
    """Axolotl counts its batches so."""
    code, said, errors = _messages(tmp_path, "counted", "--gpus", "2", "--rank", str(rank))
    assert code == 0, errors
    assert said["complete"]
    # 4,096 rows of 1,024 floats go in and come out
    assert said["ranks"][0]["phases"]["forward"] > 2 * 4096 * 1024 * 4
    assert not [guess for guess in said["guesses"] if "messages.py" in guess["location"]]


@pytest.mark.slow
def test_sizes_in_a_ring_are_guessed_and_said(tmp_path: Path) -> None:
    code, said, errors = _messages(tmp_path, "ring", "--gpus", "2", "--rank", "1")
    assert code == 0, errors
    assert said["complete"]
    assert any("rank 0 waits for values of rank 1" in text for text in said["warnings"])
    assert any("messages.py" in guess["location"] for guess in said["guesses"])


def test_a_message_of_another_size_is_an_error(tmp_path: Path) -> None:
    code, said, _ = _messages(tmp_path, "unlike", "--gpus", "2", "--rank", "1")
    assert code == 14
    assert "[1] of int32" in said["stopped"]["reason"]
    assert "[1] of int64" in said["stopped"]["reason"]


@pytest.mark.slow
def test_a_sender_that_stops_ends_the_rehearsal_of_the_receiver(tmp_path: Path) -> None:
    code, said, _ = _messages(tmp_path, "unlike", "--gpus", "3", "--rank", "2")
    assert code == 14
    assert said["stopped"]["reason"].startswith("rank 2 works on what rank 1 sends, which stopped: rank 0")
