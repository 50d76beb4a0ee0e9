"""Files of TrainingArguments: what the real class raises on is an error, what it ignores a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.arguments_keys import FILE, arguments
from zerokit.linter.arguments_file import argument_list
from zerokit.linter.files import check_files
from zerokit.linter.output import summary

BASE = {"output_dir": "out", "learning_rate": 1e-5, "max_steps": 10}
REFUSED = [
    {"fsdp": "fullshard"},
    {"fsdp": "hybrid_shard auto_wrap"},
    {"fsdp": ["full_shard", "wrap"]},
    {"fsdp": True, "fsdp_config": {"version": "two"}},
    {"fsdp": True, "fsdp_config": {"activation_checkpointing": "sure"}},
    {"fsdp": True, "fsdp_config": {"fsdp_cpu_ram_efficient_loading": 2}},
]
ACCEPTED = [
    {"fsdp": "full_shard auto_wrap"},
    {
        "fsdp": True,
        "fsdp_config": {"version": 2, "reshard_after_forward": True, "state_dict_type": "SHARDED_STATE_DICT"},
    },
    {"fsdp": True, "fsdp_config": {"fsdp_auto_wrap_policy": "NO_WRAP", "activation_checkpointing": "true"}},
    {"fsdp": "hybrid_shard", "fsdp_config": {"version": 1, "use_orig_params": True}},
    {"target_modules": "all-linear", "deepspeed": "zero2"},
]


def found(values: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    path = folder / "train.json"
    path.write_text(json.dumps({**BASE, **values}, indent=1))
    return [
        (finding.rule, finding.severity)
        for finding in check_files([str(path)])[0].findings
        if finding.severity != "note"
    ]


@pytest.mark.parametrize("values", REFUSED, ids=json.dumps)
def test_what_the_trainer_refuses_is_one_error(values: dict[str, Any], tmp_path: Path) -> None:
    assert [severity for _, severity in found(values, tmp_path)] == ["error"]


@pytest.mark.parametrize("values", ACCEPTED, ids=json.dumps)
def test_what_works_raises_no_alarm(values: dict[str, Any], tmp_path: Path) -> None:
    assert found(values, tmp_path) == []


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"gradient_acumulation_steps": 4}, "arguments-unknown-key"),
        ({"per_device_train_batch-size": 4}, "arguments-unknown-key"),
        ({"warmup_steps": "100"}, "arguments-value-as-text"),
        ({"bf16": "true"}, "arguments-value-as-text"),
        ({"fsdp_config": {"version": 2}}, "arguments-fsdp-off"),
        ({"fsdp": True, "fsdp_config": "fsdp9.json"}, "arguments-fsdp-config-missing"),
        ({"fsdp": True, "fsdp_config": {"offload_params": True}}, "arguments-fsdp-ignored-key"),
        ({"fsdp": True, "use_peft": True, "load_in_4bit": True}, "arguments-fsdp-packed"),
    ],
)
def test_what_is_ignored_is_said(values: dict[str, Any], rule: str, tmp_path: Path) -> None:
    assert found(values, tmp_path) == [(rule, "warning")]


def test_an_optimizer_that_cannot_step_shards_is_an_error(tmp_path: Path) -> None:
    for optim in ("adamw_8bit", "paged_lion_32bit", "adafactor"):
        values = {"fsdp": True, "optim": optim}
        assert found(values, tmp_path) == [("arguments-fsdp-optimizer", "error")]
        assert found({**values, "fsdp_config": {"version": 1}}, tmp_path) == []
    assert found({"fsdp": True, "optim": "adamw_torch_8bit"}, tmp_path) == []


def test_the_trainer_itself_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    for values in REFUSED:
        with pytest.raises((ValueError, KeyError)):
            made(transformers, values)
    for values in ACCEPTED[:-1]:  # the last has keys of a framework's own
        made(transformers, values)


def made(transformers: Any, values: dict[str, Any]) -> Any:
    return transformers.TrainingArguments(**{**BASE, **json.loads(json.dumps(values))})


def test_the_list_is_current() -> None:
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != argument_list()["transformers"]:
        pytest.skip("the list is of another version")
    assert json.loads(FILE.read_text()) == arguments()


AXOLOTL = {
    "base_model": "m", "sequence_len": 2048, "sample_packing": True, "micro_batch_size": 1, "num_epochs": 1,
    "optimizer": "adamw_torch", "gradient_accumulation_steps": 4, "learning_rate": "2e-4", "bf16": "auto",
    "max_steps": 5, "output_dir": "out", "fsdp_config": {"offload_params": True},
    "datasets": [{"path": "d", "type": "alpaca"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "title"),
    [
        (AXOLOTL, "axolotl"),
        ({"model_name_or_path": "m", "finetuning_type": "lora", "cutoff_len": 9}, "LLaMA-Factory"),
        ({"model": "m", "tuner_type": "lora", "split_dataset_ratio": 0.1, "torch_dtype": "bf16"}, "ms-swift"),
        ({**BASE, "model_name_or_path": "m", "use_peft": True, "dataset_train_split": "train"}, "TRL"),
        # of alpaca-lora's own script, whose keys axolotl and LLaMA-Factory took over
        ({**BASE, "base_model": "m", "num_epochs": 1, "cutoff_len": 9, "val_set_size": 9}, None),
        ({**BASE, "model_name_or_path": "m", "sequence_len": 9}, None),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_a_trainers_file_is_told_by_keys_that_it_alone_has(
    values: dict[str, Any], title: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps(values))
    (file,) = check_files([str(path)], discovered={str(path): str(tmp_path)}) or [None]
    assert (file and file.trainer and file.trainer.title) == title
    assert file is None or not [finding for finding in file.findings if finding.severity != "note"]


def test_of_a_trainers_file_what_it_names_for_deepspeed_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "examples").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_com": 1}}'
    )
    naming, with_block = tmp_path / "examples" / "named.yaml", tmp_path / "examples" / "block.yaml"
    naming.write_text(json.dumps({**AXOLOTL, "deepspeed": "configs/ds.json"}))
    block = {"zero_optimization": {"stage": 4}, "train_micro_batch_size_per_gpu": "auto"}
    with_block.write_text(json.dumps({**AXOLOTL, "deepspeed": block}))
    files = check_files([str(naming), str(with_block)])
    found_in = {Path(file.path).name: [finding.rule for finding in file.findings] for file in files}
    assert found_in == {"named.yaml": [], "block.yaml": ["wrong-value"], "ds.json": ["unknown-key"]}
    assert "; 2 files of axolotl, as " in summary(files)
