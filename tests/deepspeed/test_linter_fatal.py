"""What ``deepspeed.initialize``, ``prepare`` or the launcher raises on, ``check`` ends with 2 on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.deep import ask
from zerokit.cli import run
from zerokit.linter.deepspeed.deep import DeepCase
from zerokit.linter.files import check_files

ON = {"enabled": True}


def base(**more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": ON,
        "zero_optimization": {"stage": 2},
        **more,
    }


def adamw(offload: bool = False, **parameters: Any) -> dict[str, Any]:
    zero = {"stage": 2, **({"offload_optimizer": {"device": "cpu"}} if offload else {})}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-4, **parameters}}
    return base(optimizer=optimizer, zero_optimization=zero)


def fp16(**keys: Any) -> dict[str, Any]:
    return base(bf16={"enabled": False}, fp16={**ON, **keys})


def scheduler(kind: str, **parameters: Any) -> dict[str, Any]:
    return base(scheduler={"type": kind, "params": parameters})


def plain(kind: str, **parameters: Any) -> dict[str, Any]:
    """A scheduler of torch's, for which the optimizer must be torch's."""
    return {
        **scheduler(kind, **parameters),
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": False},
    }


RANDOM_LTD = {
    **ON,
    "total_layer_num": 4,
    "random_ltd_layer_num": 2,
    "random_ltd_schedule": {
        "min_value": 1, "max_value": 2, "schedule_type": "fixed_linear", "schedule_config": {},
    },
}  # fmt: skip
REFUSED = [
    plain("LambdaLR"),
    plain("StepLR", gamma=0.5),
    plain("CosineAnnealingLR", T_max=100, cycles=2),
    base(data_types={"keep_in_fp32_modules": True}),
    base(data_efficiency={"data_routing": {"random_ltd": {**RANDOM_LTD, "random_ltd_schedule": {}}}}),
    base(data_efficiency={"data_routing": {"random_ltd": {**RANDOM_LTD, "layer_token_lr_schedule": ON}}}),
    base(zero_optimization="Auto", data_types={"grad_accum_dtype": "fp32"}),
    base(optimizer={"type": "AdamW", "params": {"lr": 1e-4}}, train_micro_batch_size_per_gpu="x"),
    base(scheduler={"type": "WarmupLR"}),
    base(scheduler={"type": "WarmupLR", "params": None}),
    base(scheduler={"type": ""}),
    scheduler("OneCycle"),
    scheduler("OneCycle", cycle_min_lr=1e-5),
    scheduler("OneCycle", cycle_min_lr=1e-5, cycle_max_lr=1e-4, cycle_first_step_size=0),
    scheduler("LRRangeTest", lr_range_test_step_size=0),
    base(train_batch_size=10, train_micro_batch_size_per_gpu=4),
    base(torch_autocast={"enabled": True, "dtype": "bfp16"}, bf16={"enabled": False}),
    base(data_types={"grad_accum_dtype": "float8"}),
    base(checkpoint={"tag_validation": "error"}),
    base(sequence_parallel_size="2"),
    base(sequence_parallel_size=0),
    base(sequence_parallel_size=None),
    base(log_level="loud"),
    scheduler("CosineAnnealingLR", T_max=100),
    base(optimizer=None),
    base(fp16=None),
    base(aio=[]),
    base(wall_clock_breakdown=None),
    {},
    fp16(loss_scale=-1),
    fp16(loss_scale_window=0),
    fp16(min_loss_scale=0),
    *(adamw(**{name: True}) for name in ("fused", "foreach", "capturable", "maximize", "amsgrad")),
    adamw(fused=False),
    adamw(offload=True, set_grad_none=True),
    adamw(offload=True, adamw_mode=True),
    adamw(torch_adam=True, bias_correction=True),
]
AT_THE_FIRST_STEP = [base(steps_per_print=0), base(gradient_clipping=None), base(gradient_clipping="x")]
ACCEPTED = [
    adamw(torch_adam=True, fused=True),
    adamw(amsgrad=False),
    adamw(torch_adam=True, amsgrad=True),
    adamw(set_grad_none=True),
    scheduler("WarmupDecayLR", total_num_steps=1e3, warmup_num_steps=100),
    plain("CosineAnnealingLR", T_max=100, last_epoch=-1),
    plain("ReduceLROnPlateau"),
    base(data_types={"keep_in_fp32_modules": ["lm_head"]}),
    base(data_efficiency={"data_routing": {"random_ltd": RANDOM_LTD}}),
    scheduler("WarmupLR"),
    base(checkpoint={"tag_validation": "fail"}),
    base(data_types={"grad_accum_dtype": "float32"}),
    base(torch_autocast={"enabled": True, "dtype": "torch.bfloat16"}, bf16={"enabled": False}),
    base(log_level="INFO"),
    base(steps_per_print=None),
    fp16(loss_scale=128, loss_scale_window=0),
]


def errors(config: dict[str, Any], folder: Path) -> list[str]:
    path = folder / "ds.json"
    path.write_text(json.dumps(config, indent=1))
    return [finding.rule for finding in check_files([str(path)])[0].findings if finding.severity == "error"]


@pytest.mark.parametrize("config", [*REFUSED, *AT_THE_FIRST_STEP], ids=json.dumps)
def test_it_is_one_error(config: dict[str, Any], tmp_path: Path) -> None:
    assert len(errors(config, tmp_path)) == 1


@pytest.mark.parametrize("config", ACCEPTED, ids=json.dumps)
def test_what_works_is_no_error(config: dict[str, Any], tmp_path: Path) -> None:
    assert errors(config, tmp_path) == []


def test_deepspeed_itself_says_so() -> None:
    pytest.importorskip("deepspeed")
    results = ask([DeepCase(config=config, world_size=2) for config in (*REFUSED, *ACCEPTED)])
    refused = [result.ok for result in results]
    wrong = [config for config, ok in zip(REFUSED, refused, strict=False) if ok]
    wrong += [config for config, ok in zip(ACCEPTED, refused[len(REFUSED) :], strict=True) if not ok]
    assert not wrong


HEAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 4\n"
STAGE = "deepspeed_config: {zero_stage: 2}\n"
NO = "distributed_type: NO\nnum_processes: 1\n"
YAML_REFUSED = [
    HEAD + "deepspeed_config: {zero_stage: 3, zero3_init_flag: none}\n",
    HEAD + "deepspeed_config: {zero_stage: 3, zero3_init_flag: {a: 1}}\n",
    HEAD + "deepspeed_config: {deepspeed_config_file: absent.json, zero3_init_flag: none}\n",
    HEAD + "use_cpu: {a: 1}\n" + STAGE,
    HEAD.replace("LOCAL_MACHINE", "LOCAL") + STAGE,
    HEAD + "deepspeed_config: {zero_stage: 2.0}\n",
    HEAD + "gpu_ids: [0, 1]\n" + STAGE,
    HEAD + "gpu_ids: 0\n" + STAGE,
    HEAD + "main_process_port: 99999\n" + STAGE,
    HEAD + "main_process_port: '29501'\n" + STAGE,
    HEAD.replace("num_processes: 4", "num_processes: '8'").replace("machines: 1", "machines: 2") + STAGE,
    HEAD.replace("machines: 1", "machines: '1'") + STAGE,
    NO + "mixed_precision: no\n",
    HEAD.replace("DEEPSPEED", "MULTI_GPU") + "mixed_precision: fp32\n",
    HEAD.replace("DEEPSPEED", "MULTI_GPU") + "gpu_ids: '0'\n",
    HEAD.replace("DEEPSPEED", "MULTI_GPU").replace("machines: 1", "machines: 2") + "machine_rank: null\n",
]
YAML_ACCEPTED = [
    NO,
    "distributed_type: 'NO'\n",
    HEAD + "deepspeed_config: {zero_stage: 2, gradient_clipping: 1e0}\n",
    HEAD + "rdzv_backend: c10d\n" + STAGE,
    HEAD + "mixed_precision: BF16\n" + STAGE,
]


@pytest.mark.parametrize("text", [*YAML_REFUSED, HEAD + "rdzv_backend: c10\n" + STAGE])
def test_accelerate_yaml_that_fails_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert run(["check", str(path)]) == 2


@pytest.mark.parametrize("text", YAML_ACCEPTED)
def test_accelerate_yaml_that_launches_is_clean(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    findings = [finding for file in check_files([str(path)]) for finding in file.findings]
    assert not [finding for finding in findings if finding.severity != "note"]


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (base(optimizer={"type": "AdamW", "lr": 3e-4}), "parameter-beside-params"),
        (base(mixed_precision="bf16", bf16={"enabled": False}), "unknown-key"),
        (base(precision="bf16"), "unknown-key"),
        ({"train_batch_size": 1, "zero_stage": 3}, "unknown-key"),
        (base(bf16={"enabled": False}, fp16={"loss_scale": 0}), "precision-without-enabled"),
        (base(zero_optimization={"overlap_comm": True}), "zero-without-stage"),
        (base(optimizer={"type": "", "params": {"lr": 1}}), "block-without-type"),
        (base(zero_optimization={"stage": 2, "offload": {"device": "cpu"}}), "unknown-key"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_silently_another_run_is_said_once(config: dict[str, Any], rule: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config, indent=1))
    findings = [f for f in check_files([str(path)])[0].findings if f.severity != "note"]
    assert [finding.rule for finding in findings] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "x", "version": "1.0.0", "scripts": {}, "dependencies": {"stage": "1"}}',
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 3, "torch_dtype": "bf16"}',
        '{"output_dir": "out", "learning_rate": 1e-5, "bf16": true, "gradient_accumulation_steps": 2}',
        '{"editor.tabSize": 2}',
    ],
)
def test_another_file_is_recognised_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    (file,) = check_files([str(path)])
    assert not file.failed and [finding.rule for finding in file.findings] == ["not-a-configuration"]


def test_our_own_model_is_recognised(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "examples" / "tiny-llama.json"
    (file,) = check_files([str(model)])
    assert [finding.rule for finding in file.findings] == ["not-a-configuration"]


def test_hostfile_with_max_slots(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a slots=4 max_slots=8\nb slots=4 max_slots=8\n")
    assert not check_files([str(path)])[0].findings
