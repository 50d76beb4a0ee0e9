"""One finding for each cause, as severe as what follows from it, at the line where it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files

ZERO = {"stage": 2}
RAW: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": ZERO,
}
TRAINER: dict[str, Any] = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": ZERO}
HEAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 4\n"


def found(text: str, path: Path, readers: frozenset[str] | None = None) -> list[tuple[int, str, str]]:
    path.write_text(text)
    return [
        (finding.location.line, finding.rule, finding.severity)
        for file in check_files([str(path)], Context(readers=readers))
        for finding in file.findings
        if finding.severity != "note"
    ]


@pytest.mark.parametrize(
    ("config", "finding"),
    [
        # nobody fills it, and Accelerate refuses to prepare: as severe as that
        ({**TRAINER, "clipping_of_gradients": "auto"}, (6, "unknown-key", "error")),
        ({**TRAINER, "my_block": {"value": "auto", "other": "auto"}}, (6, "unknown-key", "error")),
        ({**TRAINER, "my_block": {"value": 1}}, (6, "unknown-key", "warning")),
        # the block that is missing is there, under a name that nobody reads
        ({"train_micro_batch_size_per_gpu": "auto", "ds_zero_optimization": {}}, (3, "unknown-key", "error")),
        ({**TRAINER, "zero_optimization": True}, (3, "zero-not-an-object", "error")),
        ({**TRAINER, "zero_optimization": {**ZERO, "offload_optimizer": None}}, (5, "offload-null", "error")),
        (
            {**TRAINER, "zero_optimization": {**ZERO, "cpu_offload": True}},
            (5, "cpu-offload-with-scripts-optimizer", "error"),
        ),
        ({**RAW, "train_micro_batch_size_per_gpu": 0.5}, (2, "wrong-kind", "error")),
        ({**RAW, "gradient_accumulation_steps": 1e30}, (12, "out-of-range", "error")),
        ({**RAW, "optimizer": {"params": {"lr": 1}, "eps": 1}}, (3, "block-without-type", "error")),
        ({"deepspeed": RAW}, (2, "misplaced-key", "error")),
        ({**RAW, "optimization_zero": {}}, (12, "unknown-key", "warning")),
        ({**RAW, "optimizer": {"Type": "AdamW", "params": {"lr": 1}}}, (4, "unknown-key", "error")),
        ({"train_micro_batch_size_per_gpu": "auto", "zero": ZERO}, (3, "unknown-key", "error")),
        ({**RAW, "train_micro_batch_size_per_gpu": float("nan")}, (2, "not-finite", "error")),
        ({**TRAINER, "pipeline": "auto"}, (6, "auto-not-filled", "error")),
        ({"train_micro_batch_size_per_gpu": "auto", "zero3": ZERO}, (3, "unknown-key", "error")),
        ({**RAW, "lr": 1e-4}, (12, "unknown-key", "warning")),
        ({**RAW, "activation_checkpointing": {}, "allgather_partitions": True},
         (13, "misplaced-key", "warning")),
        ({**RAW, "stage": 3}, (12, "misplaced-key", "warning")),
        ({**RAW, "max_grad_norm": 1.0}, (12, "unknown-key", "warning")),
        ({**RAW, "gradient_cliping": 1.0}, (12, "unknown-key", "error")),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_in_json(config: dict[str, Any], finding: tuple[int, str, str], tmp_path: Path) -> None:
    assert found(json.dumps(config, indent=1), tmp_path / "ds.json") == [finding]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (HEAD + "machine_rank: null\ndeepspeed_config:\n  zero_stage: 2\n", None),
        (HEAD + "zero_stage: 2\ndeepspeed_config:\n  zero3_init_flag: false\n",
         (5, "accelerate-unknown-key", "error")),
        (HEAD + "deepspeed_config:\ndeepspeed_config_file: ds.json\n",
         (6, "accelerate-unknown-key", "error")),
        (HEAD + "deepspeed_config:\n  stage: 3\n", (6, "accelerate-ignored-key", "warning")),
        (HEAD + "use_cpu: 'false'\ndeepspeed_config:\n  zero_stage: 2\n",
         (5, "accelerate-flag-as-text", "warning")),
        (HEAD + "deepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu\n",
         (7, "accelerate-offload-stage", "warning")),
        (HEAD.replace("num_processes: 4", "num_processes: 1e1") + "deepspeed_config:\n  zero_stage: 2\n",
         (4, "yaml-number-as-text", "error")),
        (HEAD + "deepspeed_config:\n  zero_stage: 2\n  buckets:\n    size: 5e7\n",
         (7, "accelerate-ignored-key", "warning")),
        (HEAD.replace("num_machines: ", "num_machines = ") + "deepspeed_config:\n  zero_stage: 2\n",
         (3, "syntax", "error")),
        (HEAD + "deepspeed_config:\n  zero_stage: [2\n  zero3_init_flag: true\n", (6, "syntax", "error")),
        (HEAD + "mixed_precision: \"bf16\ndeepspeed_config:\n  zero_stage: 2\n", (5, "syntax", "error")),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_in_yaml(text: str, finding: tuple[int, str, str] | None, tmp_path: Path) -> None:
    assert found(text, tmp_path / "accelerate.yaml") == ([finding] if finding else [])


def test_true_for_zero_is_stage_1_for_deepspeed_alone(tmp_path: Path) -> None:
    text = json.dumps({**RAW, "zero_optimization": True})
    assert found(text, tmp_path / "ds.json") == [(1, "zero-as-boolean", "warning")]
    raw = frozenset({"raw"})
    assert found(text, tmp_path / "ds.json", raw) == [(1, "zero-as-boolean", "warning")]
    trainer = frozenset({"trainer"})
    assert [rule for _, rule, _ in found(text, tmp_path / "ds.json", trainer)] == ["zero-not-an-object"]
