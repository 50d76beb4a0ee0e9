"""``check --fix`` writes what cannot change what runs; what could is offered, and written on demand alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.strictload import load_yaml
from zerokit.suggest import leaves_no_doubt, nearest

HEAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 2\n"
STAGE = "deepspeed_config:\n  zero_stage: 2\n"


def base(**more: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, **more}


def params(block: str, kind: str, **values: object) -> dict[str, Any]:
    return base(**{block: {"type": kind, "params": values}})


MEANS_ANOTHER_THING = [
    params("scheduler", "WarmupLR", warmup_step=100),
    params("scheduler", "WarmupCosineLR", total_num_steps=9, cos_min_lr=0.1),
    params("optimizer", "AdamW", beta1=0.9),
    params("optimizer", "AdamW", beta=0.9),
    base(FP16={"enabled": True}),
    base(Gradient_Accumulation_Steps=4),
    base(gradient_accumulation_step=4),
    base(zero_optimizations={"stage": 3}),
    base(activation_checkpointing={"partition_activation": True}),
    {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "stage2_max_live_parameters": 5}},
    {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "overlap_con": True}},
    {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "overlap_com": "ring"}},
    base(wall_clock_breakdown="false"),
    base(tensor_parallel={"autotp_size": 2}, train_batch_size=2),
]
MEANS_ANOTHER_THING_IN_YAML = [
    "use_gpu: true\n", "main_process_addr: 10.0.0.1\n", "tp_config: {a: 1}\n", "num_process: four\n",
    "main_process_ports: 99999\n", "mixed_precisions: 1\n",
]  # fmt: skip


@pytest.mark.parametrize("config", MEANS_ANOTHER_THING, ids=lambda config: json.dumps(config)[50:110])
def test_what_may_mean_another_thing_is_left(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config, indent=2))
    run(["check", str(path), "--fix"])
    assert json.loads(path.read_text()) == config


@pytest.mark.parametrize("line", MEANS_ANOTHER_THING_IN_YAML)
def test_what_may_mean_another_thing_is_left_in_yaml(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HEAD + line + STAGE)
    run(["check", str(path), "--fix"])
    assert path.read_text() == HEAD + line + STAGE


def test_one_meaning_is_written_and_comments_and_order_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# ours\n" + HEAD.replace("num_processes: 2", '"num_proceses": 2 # two') + STAGE)
    run(["check", str(path), "--fix"])
    assert path.read_text() == "# ours\n" + HEAD.replace("num_processes: 2", "num_processes: 2 # two") + STAGE
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, // kept\n "zero_optimization": {"zero_stage": 3}}')
    run(["check", str(path), "--fix"])
    assert path.read_text() == (
        '{"train_micro_batch_size_per_gpu": 1, // kept\n "zero_optimization": {"stage": 3}}'
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"cpu_offload": True}, {"offload_optimizer": {"device": "cpu"}}),
        ({"cpu_offload_params": True}, {"offload_param": {"device": "cpu"}}),
        ({"cpu_offload": False}, {}),
        ({"cpu_offload_use_pin_memory": True}, {}),
    ],
)
def test_a_deprecated_offload_flag_becomes_what_deepspeed_makes_of_it(
    old: dict[str, Any], new: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    config = base(optimizer={"type": "AdamW", "params": {"lr": 1e-4}}, bf16={"enabled": True})
    path.write_text(json.dumps({**config, "zero_optimization": {"stage": 3, **old}}))
    run(["check", str(path), "--fix"])
    assert json.loads(path.read_text())["zero_optimization"] == {"stage": 3, **new}
    said = capsys.readouterr().err
    block, value = next(iter(new.items()), ("", None))
    wrote = (
        f"set zero_optimization.{block} to {json.dumps(value)}"
        if new
        else "fixed: removed zero_optimization."
    )
    assert wrote in said
    assert run(["check", str(path)]) == 0


def test_pinned_memory_of_old_beside_the_new_block_is_not_refused(tmp_path: Path) -> None:
    """DeepSpeed refuses a deprecated key beside its successor, but this one has none."""
    path = tmp_path / "ds.json"
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "cpu_offload_use_pin_memory": True}
    path.write_text(json.dumps(base(zero_optimization=zero)))
    assert run(["check", str(path)]) == 0


def test_an_ignored_setting_takes_effect_on_demand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(base(FP16={"enabled": True})))
    run(["check", str(path), "--json"])
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert (finding["fixable"], finding["unsafe_fix"]) == (False, True)
    run(["check", str(path)])
    assert "did you mean 'fp16'? (--fix --unsafe writes it)" in capsys.readouterr().out
    run(["check", str(path), "--fix", "--unsafe"])
    assert json.loads(path.read_text()) == base(fp16={"enabled": True})
    assert run(["check", str(path), "--unsafe"]) == 2


def test_a_number_in_quotes_is_written_where_the_same_is_built(tmp_path: Path) -> None:
    """DeepSpeed's classes read a number out of the text; an optimizer is built with the text itself."""
    path = tmp_path / "ds.json"
    zero = {"stage": "2", "reduce_bucket_size": "500000"}
    path.write_text(
        json.dumps(base(optimizer={"type": "AdamW", "params": {"lr": "5e-05"}}, zero_optimization=zero))
    )
    run(["check", str(path), "--fix"])
    fixed = json.loads(path.read_text())
    assert fixed["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 500000}
    assert fixed["optimizer"]["params"]["lr"] == "5e-05"
    run(["check", str(path), "--fix", "--unsafe"])
    assert json.loads(path.read_text())["optimizer"]["params"]["lr"] == 5e-05


def test_a_key_with_dots_names_one_level(tmp_path: Path) -> None:
    config = base(**{"zero_optimization.stage": 3})
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    run(["check", str(path), "--fix", "--unsafe"])
    assert json.loads(path.read_text()) == config


def test_every_quoted_scalar_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("{distributed_type: DEEPSPEED, num_processes: 2, mixed_precision: no, debug: false}\n")
    run(["check", str(path), "--fix"])
    assert load_yaml(path).value["mixed_precision"] == "no"
    assert "debug: false}" in path.read_text()


@pytest.mark.parametrize(
    ("wrong", "known", "right"),
    [
        ("use_gpu", ["use_cpu", "gpu_ids"], None),
        ("tp_config", ["fp8_config", "fsdp_config"], None),
        ("main_process_addr", ["main_process_port", "main_process_ip"], None),
        ("cos_min_lr", ["cos_min_ratio", "warmup_min_ratio"], None),
        ("warmup_step", ["warmup_type", "warmup_num_steps", "cycle_first_step_size"], "warmup_num_steps"),
        ("stage2_max_live_parameters", ["stage3_max_live_parameters"], None),
        ("stge", ["stage"], "stage"),
        ("overlap_com", ["overlap_comm"], "overlap_comm"),
        ("microBatch", ["micro_batch"], "micro_batch"),
        ("gpus_id", ["gpu_ids", "use_cpu"], "gpu_ids"),
        ("gpus_name", ["gpu_ids"], None),
    ],
)
def test_suggestions_are_of_spelling_alone(wrong: str, known: list[str], right: str | None) -> None:
    assert nearest(wrong, known) == right


@pytest.mark.parametrize(
    ("wrong", "right", "known", "sure"),
    [
        ("overlap_com", "overlap_comm", ["overlap_comm"], True),
        ("OverlapComm", "overlap_comm", ["overlap_comm"], True),
        ("beta1", "betas", ["betas"], False),
        ("warmup_max_l", "warmup_max_lr", ["warmup_max_lr", "warmup_min_lr"], False),
        ("num_proceses", "num_processes", ["num_processes", "num_machines"], True),
        ("overlap_conm", "overlap_comm", ["overlap_comm"], False),
    ],
)
def test_no_doubt(wrong: str, right: str, known: list[str], sure: bool) -> None:
    assert leaves_no_doubt(wrong, right, known) is sure
