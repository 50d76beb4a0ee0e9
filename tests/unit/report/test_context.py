"""What a page says was run is what the ranks and the run's own files say, not the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.report_pages import PLAN, report
from zerokit.report.context import RunContext, facts, read_context, subject
from zerokit.report.schema import RunReport
from zerokit.strictload.yamltext import dump_yaml

ENGINE = {
    "zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 8, "parameters": 12_194_688,
    "offload_optimizer": "none", "gradient_checkpointing": False, "dtype": "bfloat16", "tensor_parallel": 1,
}  # fmt: skip


def with_choice(**more: Any) -> dict[str, Any]:
    plan: dict[str, Any] = dict(PLAN)
    return {**plan, "chosen": {**plan["chosen"], **more}}


def run_of(engine: dict[str, Any], differences: tuple[dict[str, Any], ...] = ()) -> RunReport:
    body = report(2).to_dict()
    for rank in body["ranks"]:
        rank["engine"] = engine
    body["predicted_vs_measured"]["differences"] = list(differences)
    return RunReport.model_validate(body)


def test_another_job_than_the_plans_is_shown_as_it_ran() -> None:
    context = RunContext(plan=with_choice(offload_optimizer="cpu", activation_checkpointing="full"))
    shown = dict(facts(run_of(ENGINE), context))
    assert shown["strategy"] == "ZeRO-2, data parallel 2, no checkpointing, bfloat16"
    assert shown["model"] == "llama-3.1-8b, 12.2M parameters"  # nothing says that it was another
    other = run_of(ENGINE, ({"what": "model", "planned": "8030261248", "ran": "12194688", "text": "…"},))
    assert dict(facts(other, context))["model"] == "12.2M parameters; the plan is for llama-3.1-8b"
    assert subject(other, context) == "train.py, 12.2M parameters"


def test_fsdp2_is_named_by_who_ran_it_or_planned_it() -> None:
    chosen = {"zero_stage": None, "engine": "fsdp2"}
    shown = dict(facts(run_of({}), RunContext(plan=with_choice(**chosen))))
    assert shown["strategy"].startswith("FSDP2, data parallel 2")
    ran = run_of({"engine": "fsdp2", "zero_stage": None, "dtype": "bfloat16", "offload_param": "cpu"})
    assert dict(facts(ran, RunContext()))["strategy"].startswith("FSDP2, weight offload to cpu")


def test_the_batch_is_the_one_that_was_fed() -> None:
    """An Accelerate script feeds what its loader has, whatever the engine was told."""
    shown = dict(facts(run_of(ENGINE | {"batch_rows": 2}), RunContext()))
    assert shown["batch"] == "2 per GPU × 8 accumulation"


def test_data_parallel_ranks_are_those_that_the_other_degrees_leave() -> None:
    plan = with_choice(data_parallel=4, tensor_parallel=2)
    assert "data parallel 2, tensor parallel 2" in dict(facts(report(4), RunContext(plan=plan)))["strategy"]


def test_the_settings_are_those_of_the_runs_own_file_and_say_what_the_plan_has(tmp_path: Path) -> None:
    planned = {"train_batch_size": 64, "steps_per_print": 10, "bf16": {"enabled": True}, "clip": 1.0}
    ran = {"bf16": {"enabled": True}, "steps_per_print": 5, "clip": "auto", "optimizer": {"torch_adam": True}}
    reasons = {"bf16.enabled": "the plan is for bf16", "steps_per_print": "a line every 10 steps"}
    plan = {"chosen": {"deepspeed_config": planned}, "reasons": reasons}
    (tmp_path / "plan.yaml").write_text(dump_yaml(plan))
    of_plan = read_context(tmp_path).settings
    assert ("train_batch_size", "64", "") in of_plan and len(of_plan) == 4
    (tmp_path / "ds_config.json").write_text(json.dumps(ran))
    assert read_context(tmp_path).settings == [
        ("bf16.enabled", "true", "the plan is for bf16"),
        ("steps_per_print", "5", "set for this run; the plan has 10"),
        ("clip", '"auto"', "the script's arguments fill it; the plan has 1.0"),
        ("optimizer.torch_adam", "true", "set for this run"),
    ]
    (tmp_path / "ds_config.json").write_text("{")
    assert read_context(tmp_path).settings == of_plan
