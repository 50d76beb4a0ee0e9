"""Files of TrainingArguments: what the real class raises on is an error, what it ignores a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.arguments_keys import FILE, arguments
from zerokit.linter.arguments_file import argument_list
from zerokit.linter.files import check_files

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
    ],
)
def test_what_is_ignored_is_said(values: dict[str, Any], rule: str, tmp_path: Path) -> None:
    assert found(values, tmp_path) == [(rule, "warning")]


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
