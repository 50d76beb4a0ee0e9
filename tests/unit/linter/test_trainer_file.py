"""Trainers' files: what their own validators refuse is an error, what they ignore a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.linter.files import check_files
from zerokit.linter.fix import fix_file
from zerokit.linter.trainer_conflicts import Conflict

AXOLOTL = {
    "base_model": "m", "sequence_len": 2048, "sample_packing": True, "micro_batch_size": 1, "num_epochs": 1,
    "datasets": [{"path": "d", "type": "alpaca"}], "val_set_size": 0.05, "lora_target_linear": True,
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "m", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "dataset": "identity", "template": "qwen3", "cutoff_len": 2048, "learning_rate": 1e-4,
    "lora_target": "all",
}  # fmt: skip
SWIFT = {"model": "m", "tuner_type": "lora", "dataset": ["d"], "split_dataset_ratio": 0.0, "max_length": 2048}
TRL = {"model_name_or_path": "m", "dataset_name": "d", "use_peft": True, "dataset_train_split": "train"}

# as axolotl 0.19.0 (validate_config), LLaMA-Factory 0.9.6.dev0 (get_train_args), TRL 1.16.0 (TrlParser) say
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (AXOLOTL, {"sequence_len": "long"}, "trainer-wrong-kind", "error"),
    (AXOLOTL, {"warmup_steps": 0.1}, "trainer-wrong-kind", "error"),
    (AXOLOTL, {"output_dir": None}, "trainer-wrong-kind", "error"),
    (AXOLOTL, {"rl": "dpoo", "sample_packing": False}, "trainer-wrong-choice", "error"),
    (AXOLOTL, {"gradient_checkpointing": "unsloth"}, "trainer-wrong-choice", "error"),
    (AXOLOTL, {"adapter": "qlora"}, "trainer-conflict", "error"),
    (AXOLOTL, {"warmup_steps": 10, "warmup_ratio": 0.1}, "trainer-conflict", "error"),
    (AXOLOTL, {"flash_attn_rms_norm": True}, "trainer-conflict", "error"),
    (AXOLOTL, {"datasets": None}, "trainer-conflict", "error"),
    # adamw_bnb_8bit alone is refused (validation.py:1259); the others fail at their first step
    (
        AXOLOTL,
        {"fsdp_config": {"version": 2}, "optimizer": "adamw_bnb_8bit"},
        "arguments-fsdp-optimizer",
        "error",
    ),
    (
        AXOLOTL,
        {"fsdp_version": 2, "fsdp_config": {"offload_params": False}, "optimizer": "paged_adamw_32bit"},
        "arguments-fsdp-optimizer",
        "error",
    ),
    (FACTORY, {"finetuning_typ": "full"}, "trainer-unknown-key", "error"),
    (FACTORY, {"nonsense": 1}, "trainer-unknown-key", "error"),
    (FACTORY, {"finetuning_type": "full", "quantization_bit": 4}, "trainer-conflict", "error"),
    (FACTORY, {"dist_config": {"name": "fsdp2"}}, "trainer-other-stage", "error"),
    (SWIFT, {"train_type": "lora"}, "trainer-retired-key", "error"),
    (SWIFT, {"lora_rank": "eight"}, "trainer-wrong-kind", "error"),
    (TRL, {"max_seq_length": 2048}, "trainer-retired-key", "warning"),
    (TRL, {"load_in_4bit": True, "load_in_8bit": True}, "trainer-conflict", "error"),
]
IGNORED = [
    (AXOLOTL, {"sequence_length": 2048}, "trainer-unknown-key"),
    (AXOLOTL, {"fsdp_config": {"sharding_strategy": "FULL_SHARD"}}, "trainer-unknown-key"),
    (AXOLOTL, {"datasets": [{"path": "d", "typ": "alpaca"}]}, "trainer-unknown-key"),
    (AXOLOTL, {"liger_rms_norm": True}, "trainer-other-stage"),
]
ACCEPTED = [
    (AXOLOTL, {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_rms_norm": True}),
    (AXOLOTL, {"learning_rate": "2e-4", "warmup_steps": 10.0, "bf16": "auto", "gptq_groupsize": None}),
    (AXOLOTL, {"fsdp_version": 2, "fsdp_config": {"fsdp_offload_params": True, "version": 2}}),
    (AXOLOTL, {"adapter": "qlora", "load_in_4bit": True, "gradient_checkpointing": True}),
    (AXOLOTL, {"fsdp_config": {"offload_params": False}, "optimizer": "paged_adamw_32bit"}),  # of FSDP 1
    (AXOLOTL, {"optimizer": "adamw_bnb_8bit"}),  # of no engine that divides weights
    (FACTORY, {"overwrite_output_dir": True, "report_to": "none", "warmup_ratio": 0.1}),
    (SWIFT, {"save_strategy": False, "fsdp": "fsdp2"}),  # YAML reads no so; a name of its own JSON
    (SWIFT, {"torch_dtype": "bfloat16", "learning_rate": "1e-4", "target_modules": "all-linear"}),
    (TRL, {"lora_target_modules": "all-linear", "own_argument": 3, "env": {"A": 1}}),
]


def found(values: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    path = folder / "train.yaml"
    path.write_text(json.dumps(values))
    file = check_files([str(path)])[0]
    return [(one.rule, one.severity) for one in file.findings if one.severity != "note"]


@pytest.mark.parametrize(("base", "values", "rule", "severity"), REFUSED, ids=str)
def test_what_the_trainer_refuses(
    base: dict[str, Any], values: dict[str, Any], rule: str, severity: str, tmp_path: Path
) -> None:
    assert (rule, severity) in found({**base, **values}, tmp_path)


@pytest.mark.parametrize(("base", "values", "rule"), IGNORED, ids=str)
def test_what_the_trainer_ignores(
    base: dict[str, Any], values: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    assert found({**base, **values}, tmp_path) == [(rule, "warning")]


@pytest.mark.parametrize(("base", "values"), ACCEPTED, ids=str)
def test_what_the_trainer_accepts(base: dict[str, Any], values: dict[str, Any], tmp_path: Path) -> None:
    assert found({**base, **values}, tmp_path) == []


SCRIPT = """#!/bin/bash
# swift sft --tuner_typo lora
NPROC_PER_NODE=2 \\
swift sft \\
    --model Qwen/Qwen3-8B --tuner-type lora \\
    --gradient_accumulation_steps $(expr 16 / 2) --save_strategy no \\
    --split_dataset_ratio 1e-2 --stop_words 'Observation:' {more}
"""


def test_a_command_in_a_shell_script_is_read_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(more="| tee log"))
    (file,) = check_files([str(path)])
    assert (file.kind, file.findings) == ("arguments", []) and file.trainer is not None
    path.write_text(SCRIPT.format(more="\\\n    --train_type lora --lora_rank eight"))
    (file,) = check_files([str(path)])
    assert [(one.rule, one.location) for one in file.findings] == [
        ("trainer-retired-key", (8, 5)), ("trainer-wrong-kind", (8, 23)),
    ]  # fmt: skip
    before = path.read_bytes()
    assert (fix_file(file, unsafe=True), path.read_bytes()) == ([], before)  # a script is not changed
    path.write_text("echo done\n")
    (file,) = check_files([str(path)])
    assert [one.rule for one in file.findings] == ["syntax"]


def test_a_named_json_that_says_otherwise(tmp_path: Path) -> None:
    config = {
        "zero_optimization": {"stage": 2},
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": "auto"},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    named = {**FACTORY, "deepspeed": "./ds.json", "bf16": True}
    assert found({**named, "gradient_accumulation_steps": 2}, tmp_path) == []
    assert found({**named, "gradient_accumulation_steps": 8}, tmp_path) == [
        ("trainer-deepspeed-mismatch", "error")
    ]


def test_a_slip_is_fixed_where_the_trainer_would_stop(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("model_name_or_path: m  # small\nfinetuning_type: lora\ncutoff_len: 9\nlora_rnk: 8\n")
    (file,) = check_files([str(path)])
    assert [one.fixable for one in file.findings if one.rule == "trainer-unknown-key"] == ["safe"]
    fix_file(file)
    assert path.read_text() == (
        "model_name_or_path: m  # small\nfinetuning_type: lora\ncutoff_len: 9\nlora_rank: 8\n"
    )


@pytest.mark.parametrize(
    ("when", "value", "holds"),
    [
        ("a & b", {"a": 1, "b": True}, True),
        ("a & !b", {"a": 1, "b": True}, False),
        ("a|b=x|y", {"b": "Y"}, True),
        ("a? & !a>2", {"a": 2}, True),
        ("a.b~flash", {"a": {"b": "flash_attn"}}, True),
        ("!a=no|none", {}, False),
    ],
)
def test_when_a_conflict_holds(when: str, value: dict[str, Any], holds: bool) -> None:
    conflict = Conflict(when=when, what="", fix="", source="")
    assert bool(conflict.holds(value)) == holds
