"""What a user runs today beside the plan: a DeepSpeed JSON, a trainer's file, an accelerate YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import zerokit
from zerokit.errors import InputError

H100S = {"gpus": 4, "gpu": "h100-sxm-80gb", "no_calibration": True}
JOB = {"model": "llama-3.1-8b", "seq_len": 4096, "global_batch": 32, "trainer": "trl", **H100S}
TUTORIAL = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
    },
}  # fmt: skip
"""What most tutorials give a Trainer."""
TRL = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B", "dataset_name": "data", "output_dir": "out",
    "max_length": 4096, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
    "gradient_checkpointing": True, "bf16": True, "dtype": "bfloat16", "deepspeed": "ds.json",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text(json.dumps(TUTORIAL))
    (tmp_path / "trl.yml").write_text(yaml.safe_dump(TRL))
    return tmp_path


def test_a_trainers_file_is_compared_as_it_stands(files: Path) -> None:
    plan = zerokit.plan(file=files / "trl.yml", **H100S)
    beside = plan.against
    assert beside is not None and beside.fits
    as_it_is = zerokit.estimate(file=files / "trl.yml", **H100S)
    own = plan.chosen.estimate.step_seconds
    assert as_it_is.step_seconds is not None and own is not None
    assert beside.times_as_fast == pytest.approx(as_it_is.step_seconds / own)
    assert sum(beside.more_seconds.values()) == pytest.approx(as_it_is.step_seconds - own)
    assert max(beside.more_seconds, key=lambda part: beside.more_seconds[part]) == "launch"
    # measured on four H100s, TRL's sft.py: 4.11 s for this plan, 9.9 to 10.6 s for that file
    assert 1.6 < beside.times_as_fast < 2.6
    assert plan.to_dict()["against"]["times_as_fast"] == beside.times_as_fast


def test_another_batch_is_compared_for_as_many_tokens(files: Path) -> None:
    half = files / "half.yml"
    half.write_text(yaml.safe_dump({**TRL, "gradient_accumulation_steps": 4}))
    whole, other = (zerokit.plan(**JOB, against=files / name).against for name in ("trl.yml", "half.yml"))
    assert whole is not None and other is not None
    assert whole.step_seconds is not None and other.step_seconds is not None
    assert other.theirs.planned.strategy.global_batch == 16
    # a step's optimizer twice as often
    assert whole.step_seconds < other.step_seconds < 1.1 * whole.step_seconds


def test_what_does_not_fit_is_said_as_that(files: Path) -> None:
    beside = zerokit.plan(**{**JOB, "trainer": "raw"}, against=files / "ds.json").against
    assert beside is not None and not beside.fits  # a Trainer's micro-batch of 8, nothing checkpointed
    assert f"{files}/ds.json does not fit as it is" in beside.words


def test_a_plan_is_as_fast_as_itself(tmp_path: Path) -> None:
    plan = zerokit.plan(**JOB, checkpointing="full", out=tmp_path / "plan")
    again = zerokit.plan(**JOB, checkpointing="full", against=tmp_path / "plan" / "ds_config.json").against
    assert plan.against is None and again is not None
    assert again.times_as_fast == pytest.approx(1, abs=0.02)


def test_accelerates_yaml_is_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(
        yaml.safe_dump({
            "distributed_type": "FSDP", "num_processes": 4, "mixed_precision": "bf16",
            "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True,
                            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        })
    )  # fmt: skip
    beside = zerokit.plan(**JOB, against=path).against
    assert beside is not None and beside.theirs.planned.engine == "fsdp2"


def test_sequences_of_another_length_are_compared_by_tokens(files: Path) -> None:
    short = files / "short.yml"
    short.write_text(
        yaml.safe_dump({**TRL, "max_length": 2048, "per_device_train_batch_size": 2})
    )  # as many tokens in a step
    job = {name: value for name, value in JOB.items() if name != "seq_len"}
    whole, other = (zerokit.plan(**job, against=files / name).against for name in ("trl.yml", "short.yml"))
    assert whole is not None and other is not None
    assert whole.step_seconds == pytest.approx(other.step_seconds, rel=0.1)  # but for the attention


def test_a_recipe_is_for_the_file_too(files: Path) -> None:
    zerokit.plan(**{**JOB, "trainer": "raw"}, out=files / "plan")
    recipe = files / "plan" / "plan.yaml"
    plan = zerokit.plan(recipe=recipe, against=files / "trl.yml")
    typed = zerokit.plan(**{**JOB, "trainer": "raw"}, against=files / "trl.yml")
    assert plan.against is not None and typed.against is not None
    assert plan.against.theirs.planned.cluster.gpu == plan.cluster.gpu
    assert plan.against.step_seconds == typed.against.step_seconds
    of_file = zerokit.plan(file=files / "trl.yml", recipe=recipe)
    assert of_file.against is not None and of_file.against.theirs.planned.cluster.gpu == of_file.cluster.gpu


def test_a_shell_script_is_compared_and_what_is_not_counted_of_it_told(files: Path) -> None:
    script = files / "train.sh"
    script.write_text(
        "swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --dataset x --max_length 2048 "
        "--per_device_train_batch_size 1 --deepspeed zero2 --torch_dtype bfloat16 --optimizer galore\n"
    )
    plan = zerokit.plan(model="qwen2.5-7b", method="lora", against=script, **H100S)
    assert plan.against is not None and plan.against.theirs.planned.zero_stage == 2
    assert any(note.startswith(f"not modelled of {script}: optimizer") for note in plan.assumptions)


def test_what_does_not_fit_cpu_ranks_is_said_of_ranks(files: Path) -> None:
    (files / "ds.json").write_text(json.dumps({**TUTORIAL, "train_micro_batch_size_per_gpu": 512}))
    plan = zerokit.plan(model="qwen2.5-0.5b", device="cpu", gpus=2, seq_len=128, against=files / "ds.json")
    assert plan.against is not None and plan.against.words.endswith(" required per CPU rank")


def test_what_cannot_be_compared_is_refused(files: Path) -> None:
    zerokit.plan(**JOB, out=files / "plan")
    (files / "notes.yaml").write_text("a: 1\n")
    for name in ("plan/plan.yaml", "notes.yaml"):
        with pytest.raises(InputError, match="name a DeepSpeed JSON"):
            zerokit.plan(**JOB, against=files / name)
    (files / "lora.yml").write_text(yaml.safe_dump({**TRL, "use_peft": True}))
    with pytest.raises(InputError, match="its method is lora, the plan's full"):
        zerokit.plan(**JOB, against=files / "lora.yml")
    (files / "other.yml").write_text(yaml.safe_dump({**TRL, "model_name_or_path": "Qwen/Qwen2.5-7B"}))
    with pytest.raises(InputError, match="its model is qwen"):
        zerokit.plan(file=files / "trl.yml", against=files / "other.yml", **H100S)
    with pytest.raises(InputError, match="a script says the job itself") as refused:
        zerokit.plan("train.py", against=files / "ds.json", **H100S)
    assert refused.value.field == "against"
