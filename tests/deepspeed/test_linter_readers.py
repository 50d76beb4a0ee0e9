"""Who reads a file decides what is wrong in it; DeepSpeed's, the Trainer's and Accelerate's code agree."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.linter.deepspeed.autos import fills
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.deepspeed.readers import readers_of
from zerokit.linter.files import check_files

AUTO = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
PLAIN = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
RAW = "engine = deepspeed.initialize(model=model, config='ds.json')\n"
TRAINER = "trainer = Trainer(args=TrainingArguments(deepspeed='ds.json'))\n"


def write(folder: Path, config: dict[str, Any], text: str = "", comment: str = "") -> str:
    path = folder / "ds.json"
    path.write_text(json.dumps(config, indent=1).replace("{", "{" + comment, 1))
    if text:
        (folder / "train.py").write_text(text)
    return str(path)


def severities(path: str, **context: Any) -> dict[str, str]:
    (file,) = check_files([path], Context(**context))
    return {finding.rule: finding.severity for finding in file.findings}


@pytest.mark.parametrize(
    ("script", "has_auto", "readers"),
    [
        ("", False, {"raw", "trainer", "accelerate"}),
        ("", True, {"trainer", "accelerate"}),
        (RAW, True, {"raw"}),
        (RAW, False, {"raw"}),
        (TRAINER, True, {"trainer"}),
        ("accelerator = Accelerator()  # ds.json\n", True, {"accelerate"}),
        ("deepspeed.initialize(config=other)\n", True, {"trainer", "accelerate"}),
    ],
)
def test_readers_are_inferred(script: str, has_auto: bool, readers: set[str], tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN, script)
    assert readers_of(path, has_auto=has_auto) == readers


def test_a_comment_is_fatal_for_those_who_read_json(tmp_path: Path) -> None:
    comment = " // ours\n"
    assert severities(write(tmp_path, PLAIN, comment=comment))["json-comment"] == "warning"
    assert severities(write(tmp_path, PLAIN, RAW, comment=comment))["json-comment"] == "note"
    assert severities(write(tmp_path, PLAIN, TRAINER, comment=comment))["json-comment"] == "error"
    (tmp_path / "train.py").unlink()
    assert severities(write(tmp_path, AUTO, comment=comment))["json-comment"] == "error"


def test_auto_is_fatal_for_initialize(tmp_path: Path) -> None:
    path = write(tmp_path, {**AUTO, "zero_optimization": {"stage": "auto"}})
    assert run(["check", path]) == 0
    assert run(["check", path, "--for", "trainer"]) == 0
    assert run(["check", path, "--for", "raw"]) == 2
    assert run(["check", path, "--for", "all"]) == 2
    assert run(["check", path, "--for", "nobody"]) == 2


def test_one_finding_tells_of_all_keys_and_of_those_who_do_not_fill_them(tmp_path: Path) -> None:
    params = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    optimizer = {"type": "AdamW", "params": params}
    zero = {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": "auto", "sub_group_size": "auto"}
    path = write(tmp_path, {**AUTO, "optimizer": optimizer, "zero_optimization": zero})

    def said(reader: str, **more: Any) -> list[str]:
        (file,) = check_files([path], Context(readers=frozenset(reader.split()), **more))
        return [finding.message for finding in file.findings if finding.rule == "auto-not-filled"]

    nobody = 'nobody fills "auto" for overlap_comm, sub_group_size: '
    only = 'only the Trainer fills "auto" for betas, eps: Accelerate fails when it prepares the model'
    assert said("trainer") == [f"{nobody}the Trainer fails when it prepares the model"]
    assert said("accelerate") == [f"{nobody}Accelerate fails when it prepares the model", only]
    every = said("raw trainer accelerate", every_reader_must_do=True)
    assert only in every and len(every) == 4
    assert any(
        "the engine fails on the text, for train_micro_batch_size_per_gpu, lr, weight_decay" in one
        for one in every
    )
    assert f"{nobody}the Trainer and Accelerate fail when they prepare the model, " in " ".join(every)


def test_activation_checkpointing_is_never_read_by_a_trainer(tmp_path: Path) -> None:
    config = {**PLAIN, "activation_checkpointing": {"partition_activations": True}}
    rule = "activation-checkpointing-not-read"
    assert severities(write(tmp_path, config))[rule] == "note"
    assert severities(write(tmp_path, config), readers=frozenset({"trainer"}))[rule] == "warning"
    assert rule not in severities(write(tmp_path, config), readers=frozenset({"raw"}))


def test_a_file_without_zero_is_refused_by_the_frameworks(tmp_path: Path) -> None:
    path = write(tmp_path, {"train_micro_batch_size_per_gpu": "auto"})
    assert severities(path)["no-zero-optimization"] == "error"
    path = write(tmp_path, {"train_micro_batch_size_per_gpu": 1})
    assert severities(path)["no-zero-optimization"] == "note"


def test_lightning_fills_the_batch_size(tmp_path: Path) -> None:
    path = write(tmp_path, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})
    assert severities(path) == {"batch-size-left-out": "warning"}
    assert severities(path, readers=frozenset({"raw"})) == {"batch-size-missing": "error"}


def leaves(config: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in config.items():
        inner = leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
        found += inner
    return found


EVERYWHERE: dict[str, Any] = {
    **dict.fromkeys(
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
         "gradient_clipping", "prescale_gradients", "wall_clock_breakdown"),
        "auto",
    ),
    "fp16": {"enabled": "auto", "loss_scale": "auto"},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        **dict.fromkeys(
            ("stage", "overlap_comm", "reduce_bucket_size", "stage3_prefetch_bucket_size", "sub_group_size",
             "stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save"),
            "auto",
        ),
        "offload_optimizer": {"device": "auto", "nvme_path": "auto", "pin_memory": "auto"},
        "offload_param": {"device": "auto", "nvme_path": "auto"},
    },
    "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": dict.fromkeys(
            ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps", "warmup_type"), "auto"
        ),
    },
}  # fmt: skip


def test_the_trainer_fills_what_the_table_says() -> None:
    """Its own class, and then Accelerate's plugin, which takes over what it left."""
    pytest.importorskip("accelerate")
    deepspeed = pytest.importorskip("transformers.integrations.deepspeed")
    arguments = SimpleNamespace(
        world_size=2, per_device_train_batch_size=1, gradient_accumulation_steps=1, max_grad_norm=1.0,
        learning_rate=1e-4, adam_beta1=0.9, adam_beta2=0.99, adam_epsilon=1e-8, weight_decay=0.0,
        save_on_each_node=False, fp16=False, fp16_full_eval=False, bf16=True, bf16_full_eval=False,
        get_warmup_steps=lambda _: 1,
    )  # fmt: skip
    read = deepspeed.HfTrainerDeepSpeedConfig(EVERYWHERE)
    read.trainer_config_process(arguments)
    read.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=8)), 10)
    left = {key for key in leaves(EVERYWHERE) if read.get_value(key) == "auto"}
    plugin = {
        key
        for key in left
        if key.startswith(("zero_optimization.stage", "zero_optimization.offload_")) and "pin" not in key
    }
    expected = {key for key in leaves(EVERYWHERE) if key.split(".")[-1] != "type"}
    assert {key for key in expected if not fills("trainer", key)} == left - plugin


def test_accelerate_refuses_what_the_table_does_not_fill() -> None:
    pytest.importorskip("deepspeed")
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    plugin = dataclasses.DeepSpeedPlugin(hf_ds_config=EVERYWHERE)
    for key in leaves(EVERYWHERE):
        if key.endswith(".type"):
            continue
        filled = plugin.get_value(key) != "auto" or fills("accelerate", key)
        assert filled == fills("accelerate", key), key


def test_a_file_that_an_accelerate_yaml_names_is_not_for_initialize(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, comment=" // ours\n")
    yaml = tmp_path / "a.yaml"
    yaml.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\n"
        f"deepspeed_config: {{deepspeed_config_file: {tmp_path / 'ds.json'}}}\n"
    )
    findings = [finding for file in check_files([str(yaml)]) for finding in file.findings]
    assert [f.severity for f in findings if f.rule == "json-comment"] == ["error"]
