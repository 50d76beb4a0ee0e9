"""What ran beside what was planned: the report compares like with like, or says why it does not."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support import reports
from tests.support.run_reports import ERROR, GIB, OOM, PLAN, gpu_phase, report_of, shown, write_rank
from zerokit import cli
from zerokit.domain.job import PACKED_LORA, Lora
from zerokit.launcher.replan import predict_again
from zerokit.report.compare import compare_reports
from zerokit.report.html import render_html
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import RunReport
from zerokit.report.what_ran import chosen_as_ran, differences, no_engine, of_engine, unlike_rehearsal

CHOSEN = {
    "zero_stage": 2, "micro_batch": 2, "gradient_accumulation": 4, "data_parallel": 2, "tensor_parallel": 1,
    "pipeline_parallel": 1, "sequence_parallel": 1, "precision": "bf16", "activation_checkpointing": "full",
    "offload_optimizer": "none", "offload_param": "none", "parameters": 1_000_000,
    "deepspeed_config": {"optimizer": {"type": "AdamW"}}, "estimate": PLAN["chosen"]["estimate"],
}  # fmt: skip
REQUEST = {"seq-len": "1k", "gpus": "2"}
ENGINE = {
    "type": "engine", "zero_stage": 2, "micro_batch": 2, "gradient_accumulation": 4, "tensor_parallel": 1,
    "batch_rows": 2, "batch_columns": 1000, "precision": "bf16", "dtype": "bfloat16",
    "gradient_checkpointing": True, "optimizer": "FusedAdam", "parameters": 1_000_100,
    "trainable_parameters": 1_000_100, "offload_optimizer": "none", "offload_param": "none", "engines": 1,
}  # fmt: skip


def test_a_job_as_planned_has_no_difference():
    assert of_engine(CHOSEN, ENGINE, REQUEST) == []
    assert of_engine(CHOSEN, {**ENGINE, "other_parameters": 10_000}, REQUEST) == []  # a loss with weights
    of_model = {**CHOSEN, "seq_len": 1000}  # its limit, which nobody gave
    assert of_engine(of_model, ENGINE, {"gpus": "2"}) == []
    assert of_engine(CHOSEN, {}, REQUEST) == []  # nothing is known of it
    for adam in ("AdamW", "Adam", "DeepSpeedCPUAdam", "FusedAdam"):
        assert of_engine(CHOSEN, {**ENGINE, "optimizer": adam}, REQUEST) == []


def test_a_plan_for_pairs_counts_two_sequences_of_each_row() -> None:
    pairs = {**ENGINE, "loader_rows": 2, "batch_rows": 4}
    assert of_engine({**CHOSEN, "sequences_per_row": 2}, pairs, REQUEST) == []
    by_trainer = {**REQUEST, "trainer": "trl-dpo"}
    assert of_engine(CHOSEN, {**pairs, "engines": 2}, by_trainer) == []  # the reference's, too
    adapters = of_engine(CHOSEN, {**pairs, "engines": 2}, {**by_trainer, "method": "lora"})
    assert "engines" in {one.what for one in adapters}
    assert "not 1 of each row" in of_engine(CHOSEN, pairs, REQUEST)[0].text
    (found,) = of_engine({**CHOSEN, "sequences_per_row": 2}, {**pairs, "batch_columns": 512}, REQUEST)
    assert "sequence length 512 ran" in found.text


@pytest.mark.parametrize(
    ("script", "engine", "text"),
    [
        ({"engines": 2}, {"engines": 2}, None),
        ({"engines": 2}, {"engines": 1}, "1 DeepSpeed engine ran, but the plan has 2"),
        ({}, {"engines": 2}, "2 DeepSpeed engines ran, but the plan has one: it predicts one model"),
        ({"other_parameters": 500_000}, {"other_parameters": 500_000}, None),
        ({"other_parameters": 500_000}, {"other_parameters": 900_000}, "900,000 parameters of other models "
         "were held beside the one that trains, of which the plan has 500,000"),
        ({}, {"other_parameters": 500_000}, "which the plan does not have"),
    ],
)  # fmt: skip
def test_other_models_are_those_of_the_rehearsed_script(
    script: dict[str, int], engine: dict[str, int], text: str | None
) -> None:
    """Whose command may be another: ``chosen.rehearsed`` is that of this very one."""
    chosen = {**CHOSEN, "parameters": 1_000_000, "script": script}
    found = of_engine(chosen, {**ENGINE, **engine}, REQUEST)
    assert [text in difference.text for difference in found] == ([] if text is None else [True])  # type: ignore[operator]
    assert of_engine({**chosen, "rehearsed": {}}, {**ENGINE, **engine}, REQUEST) == []


@pytest.mark.parametrize(("device", "told"), [("cpu", 0), ("cuda", 1)])
def test_offload_that_launch_takes_out_on_the_cpu_is_no_other_job(device: str, told: int) -> None:
    plan = {"chosen": {**CHOSEN, "offload_optimizer": "cpu"}, "request": REQUEST}
    ranks = [{"rank": rank, "device": device, "engine": ENGINE} for rank in range(2)]
    found = [difference for difference in differences(plan, ranks) if difference.what == "optimizer offload"]
    assert len(found) == told


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"batch_rows": 4}, "batch size per GPU 4 ran, not 2"),
        ({"batch_rows": 4, "loader_rows": 4}, "batch size per GPU 4 ran, not 2"),
        ({"batch_rows": 4, "loader_rows": 2}, "4 sequences ran in each micro-batch of 2 rows of data"),
        ({"batch_columns": 512}, "sequence length 512 ran, not 1000"),
        ({"batch_rows": 1, "batch_columns": 4000}, "4000 tokens per micro-batch ran (one row), not 2000"),
        ({"gradient_accumulation": 1}, "gradient accumulation 1 ran, not 4"),
        ({"precision": "fp32"}, "precision fp32 ran, not bf16"),
        ({"precision": None, "dtype": "float32"}, "the weights were in fp32, not bf16"),
        ({"gradient_checkpointing": False}, "the script did not turn activation checkpointing on"),
        ({"optimizer": "Adafactor"}, "optimizer Adafactor ran, not AdamW"),
        ({"optimizer": "AdamW8bit"}, "optimizer AdamW8bit ran, not AdamW"),
        ({"trainable_parameters": 5000}, "5,000 of 1,000,100 parameters were trained"),
        ({"parameters": 2_000_000, "trainable_parameters": 2_000_000}, "the model has 2,000,000 parameters"),
        ({"zero_stage": 3}, "ZeRO stage 3 ran, not 2"),
        ({"offload_optimizer": "cpu"}, "optimizer offload cpu ran, not none"),
        ({"engines": 2}, "2 DeepSpeed engines ran"),
        ({"other_parameters": 500_000}, "500,000 parameters of other models were held"),
    ],
)  # fmt: skip
def test_each_difference_is_named_by_itself(changed, text):
    (found,) = of_engine(CHOSEN, {**ENGINE, **changed}, REQUEST)
    assert text in found.text


def test_sequences_laid_end_to_end_and_split_over_ranks_are_as_planned():
    assert of_engine(CHOSEN, {**ENGINE, "batch_rows": 1, "batch_columns": 2000}, REQUEST) == []
    split = {**CHOSEN, "sequence_parallel": 2}
    assert of_engine(split, {**ENGINE, "batch_columns": 500}, REQUEST) == []


def test_adapters():
    request = {**REQUEST, "method": "lora"}
    adapted = {**ENGINE, "parameters": 1_005_000, "trainable_parameters": 5000}
    assert of_engine(CHOSEN, adapted, request) == []
    (found,) = of_engine(CHOSEN, {**ENGINE}, request)
    assert "not adapters alone" in found.text and found.option == "method"
    ran = {**adapted, "adapters": {"rank": 8, "targets": "q_proj,v_proj"}}
    # the model is the planned one, however large the adapters are beside it
    tiny = {**ran, "parameters": 1_100_100, "trainable_parameters": 100_000}
    assert [entry.option for entry in of_engine(CHOSEN, tiny, REQUEST)] == ["method"]
    (found,) = of_engine(CHOSEN, ran, REQUEST)
    lora = Lora(rank=8, targets=("q_proj", "v_proj"))
    assert (found.option, found.ran, found.lora) == ("method", "LoRA of rank 8 on q_proj, v_proj", lora)
    assert "5,000 of 1,005,000 parameters were trained (LoRA of rank 8 on q_proj, v_proj)" in found.text
    assert of_engine(CHOSEN, ran, {**request, "lora-rank": "8", "lora-targets": "v_proj,q_proj"}) == []
    (found,) = of_engine(CHOSEN, ran, request)  # 16 and all linear layers are the plan's defaults
    assert found.text == (
        "adapters: LoRA of rank 8 on q_proj, v_proj, but the plan has LoRA of rank 16 on all-linear"
    )


@pytest.mark.parametrize("kind", ["DoRA", PACKED_LORA, "LoRA of several ranks"])
def test_adapters_that_no_plan_has_are_named_and_not_predicted_again(kind):
    ran = {**ENGINE, "parameters": 1_050_000, "trainable_parameters": 50_000, "adapters_unlike_lora": kind}
    (found,) = of_engine(CHOSEN, ran, {**REQUEST, "method": "lora"})
    assert found.text == f"adapters: {kind}, but the plan has LoRA" and found.option is None
    assert predict_again({"request": {**REQUEST, "method": "lora"}, "chosen": CHOSEN}, [found]).plan is None
    planned = of_engine(CHOSEN, ran, {**REQUEST, "method": "qlora"})
    assert len(planned) == ("4 bits" not in kind)
    (found,) = of_engine(CHOSEN, ran, REQUEST)  # the adapters' own weights make no other model
    assert "50,000 of 1,050,000 parameters were trained" in found.text
    twice = {**ran, "parameters": 2_050_000}
    assert "the model has 2,000,000" in of_engine(CHOSEN, twice, {**REQUEST, "method": "qlora"})[-1].text


def test_lora_on_16_bits_under_a_plan_for_4_bits_is_named():
    ran = {**ENGINE, "parameters": 1_005_000, "trainable_parameters": 5000,
           "adapters": {"rank": 16, "targets": "all-linear"}}  # fmt: skip
    (found,) = of_engine(CHOSEN, ran, {**REQUEST, "method": "qlora"})
    assert "not in 4 bits" in found.text and found.lora == Lora()


def test_a_loop_that_steps_at_each_micro_batch():
    ranks = [{"engine": ENGINE, "steps": 8, "micro_steps": 8}] * 2
    (found,) = differences({"chosen": CHOSEN, "request": REQUEST}, ranks)
    assert found.text == "gradient accumulation 1 ran, not 4"
    (found, _) = differences({"chosen": CHOSEN, "request": REQUEST}, ranks * 2)
    assert found.text == "ranks 4 ran, not 2"


def test_an_epoch_may_end_with_a_step_of_fewer_micro_batches():
    plan = {"chosen": CHOSEN, "request": REQUEST}
    short = {"engine": ENGINE, "steps": 7, "micro_steps": 25}  # six steps of four, the last of one
    assert differences(plan, [{**short, "most_micro_steps": 4}] * 2) == []
    (found,) = differences(plan, [{**short, "micro_steps": 14, "most_micro_steps": 2}] * 2)
    assert found.text == "gradient accumulation 2 ran, not 4"


def test_a_step_that_has_begun_is_no_accumulation():
    plan = {"chosen": {**CHOSEN, "gradient_accumulation": 1}, "request": REQUEST}
    engine = {**ENGINE, "gradient_accumulation": 1}
    assert differences(plan, [{"engine": engine, "steps": 2, "micro_steps": 3}] * 2) == []
    (found,) = differences(plan, [{"engine": engine, "steps": 2, "micro_steps": 4}] * 2)
    assert found.text == "gradient accumulation 2 ran, not 1"


def run(folder: Any, plan: Any = None, **changed: Any) -> dict[str, Any]:
    for rank in range(2):
        engine = {**ENGINE, "rank": rank, "pid": 100 + rank, **changed}
        write_rank(folder, rank, extra=[engine], micro_steps=48)
    return report_of(folder, 2, plan or {"chosen": CHOSEN, "request": REQUEST})


def test_what_ran_as_planned_is_compared(tmp_path):
    report = run(tmp_path)
    compared = report["predicted_vs_measured"]
    assert (compared["predicted_for"], compared["predicted_by"]) == ("plan", "plan")
    assert compared["differences"] == []
    assert compared["peak_bytes"]["error_fraction"] == pytest.approx(1 / 30)


def test_what_ran_otherwise_is_named_and_not_compared(tmp_path):
    report = run(tmp_path, batch_rows=8, precision="fp32")
    RunReport.model_validate(report)
    compared = report["predicted_vs_measured"]
    assert compared["predicted_for"] is None
    assert compared["peak_bytes"] == {"predicted": None, "measured": 30 * GIB, "error_fraction": None}
    assert not any(pair["error_fraction"] for pair in compared["phases"].values())
    assert compared["step_seconds"]["predicted"] is None
    assert [difference["what"] for difference in compared["differences"]] == [
        "batch size per GPU",
        "precision",
    ]
    assert report["ranks"][0]["predicted_peak_allocated_bytes"] == 31 * GIB  # the plan's, as it was
    for text in (shown(report), render_html(report)):
        assert "not compared with the plan" in text
        assert text.count("batch size per GPU 8 ran, not 2") == 1
        assert not re.search(r"[+-]\d+\.\d %", text)


def test_a_prediction_for_what_ran_is_compared(tmp_path):
    asked: list[Any] = []

    def again(plan: Any, found: Any) -> Any:
        asked.append((plan, [entry.option for entry in found]))
        estimate = {**plan["chosen"]["estimate"]}
        estimate["per_rank"] = [{"ranks": [0, 1], "peak_allocated_bytes": 15 * GIB, "phases": {}}]
        return PredictedAgain(plan={"chosen": {**plan["chosen"], "estimate": estimate}})

    run(tmp_path, batch_rows=8)
    plan = {"chosen": CHOSEN, "request": REQUEST}
    report = reports.report_of(tmp_path, 2, plan=plan, predict_again=again)
    compared = report["predicted_vs_measured"]
    assert asked[0][1] == ["micro-batch"]
    assert (compared["predicted_for"], compared["predicted_by"]) == ("what ran", "estimate")
    assert compared["peak_bytes"]["predicted"] == 15 * GIB
    assert compared["peak_bytes"]["error_fraction"] == pytest.approx(-0.5)
    assert "predicted again for what ran" in shown(report)


def test_why_nothing_is_compared_is_told_with_the_command_that_would_predict_it(tmp_path):
    why = PredictedAgain(why_not="its rehearsal stopped: train.py:3", command="zerokit rehearse train.py")
    run(tmp_path, engines=2)
    plan = {"chosen": CHOSEN, "request": REQUEST}
    report = reports.report_of(tmp_path, 2, plan=plan, predict_again=lambda *_: why)
    compared = report["predicted_vs_measured"]
    assert (compared["predicted_for"], compared["predicted_by"]) == (None, None)
    for text in (shown(report), render_html(report)):
        assert "2 DeepSpeed engines ran" in text
        assert "not predicted again: its rehearsal stopped: train.py:3" in text
        assert "to predict it as it ran, otherwise than the plan: zerokit rehearse train.py" in text


def test_a_rehearsal_that_did_another_job_is_named():
    assert unlike_rehearsal(ENGINE, {**ENGINE, "optimizer": "DeepSpeedCPUAdam", "batch_columns": 1004}) == []
    assert unlike_rehearsal(ENGINE, {}) == []
    assert unlike_rehearsal(ENGINE, {**ENGINE, "batch_columns": 900, "engines": 2, "optimizer": "SGD"}) == [
        "DeepSpeed engines 1, in the rehearsal 2",
        "optimizer FusedAdam, in the rehearsal SGD",
        "the largest micro-batch was 2 × 1000, in the rehearsal 2 × 900",
    ]


def test_generation_is_a_difference_where_no_rehearsal_predicts_it():
    ranks = [
        {"engine": ENGINE, "steps": 2, "micro_steps": 8, "phase_details": {"generate": {"count": 1}}}
    ] * 2
    (found,) = differences({"chosen": CHOSEN, "request": REQUEST}, ranks)
    assert (found.what, found.option) == ("generation", None)
    rehearsed = {**CHOSEN, "rehearsed": {"script": "train.py"}}
    assert differences({"chosen": rehearsed, "request": REQUEST}, ranks) == []


# -- a GPU that was not measured --------------------------------------------------------------------


def unmeasured(folder: Any, status: str | None, **end: Any) -> dict[str, Any]:
    for rank in range(2):
        known = {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "peak_host_rss_bytes": 19 * GIB}
        more = {"gpu_status": status} if status else {}
        write_rank(folder, rank, on_gpu=False, device="cuda", **known, **more, **end)
    return report_of(folder, 2)


@pytest.mark.parametrize(
    ("status", "why"),
    [("no_torch", "never imported torch"), ("no_cuda_build", "a build without CUDA"),
     ("not_used", "never used a GPU"), ("nothing_allocated", "nothing was allocated"), (None, "no reason")],
)  # fmt: skip
def test_a_gpu_without_figures_is_not_measured_and_stands_beside_nothing(tmp_path, status, why):
    report = unmeasured(tmp_path, status)
    RunReport.model_validate(report)
    assert report["outcome"] == "ok"
    (problem,) = report["problems"]
    assert problem.startswith("ranks 0, 1: GPU memory not measured") and why in problem
    rank = report["ranks"][0]
    assert why in rank["not_measured"]
    assert (rank["phases"], rank["peak_phase"]) == ({}, None)
    compared = report["predicted_vs_measured"]
    assert compared["kind"] == "gpu_memory"
    assert compared["peak_bytes"] == {"predicted": 31 * GIB, "measured": None, "error_fraction": None}
    text = shown(report)
    for page in (text, render_html(report)):
        assert "not measured" in page and why in page
        assert not re.search(r"\d %", page)
    assert "1 problem named above" in text


def test_a_rank_that_ended_before_it_used_the_gpu_is_no_problem_of_its_own(tmp_path):
    report = unmeasured(tmp_path, "not_used", state="failed", exit_code=1)
    assert report["problems"] == []
    assert report["ranks"][0]["not_measured"] == "it ended before it used the GPU"


def test_a_run_that_fails_in_init_is_compared_with_nothing(tmp_path):
    """512 bytes were allocated when it failed: the error of the prediction was +3607563125.8 %."""
    phases = {"load": {**gpu_phase(512), "count": 1}, "init": {**gpu_phase(1024), "count": 1}}
    write_rank(tmp_path, 0, phases=phases, peak_allocated_bytes=1024, steps=0, micro_steps=0, state="failed",
               exit_code=1, phase="init")  # fmt: skip
    compared = report_of(tmp_path, 1)["predicted_vs_measured"]
    pairs = [compared["peak_bytes"], *compared["phases"].values(), *compared["per_rank"]]
    assert [pair["error_fraction"] for pair in pairs] == [None] * len(pairs)
    assert compared["peak_bytes"]["measured"] == 1024
    # one that fails in its first backward got through init and forward
    phases |= {"forward": gpu_phase(20 * GIB), "backward": gpu_phase(25 * GIB), "init": gpu_phase(20 * GIB)}
    write_rank(tmp_path, 0, phases=phases, peak_allocated_bytes=25 * GIB, steps=0, micro_steps=1,
               state="failed", exit_code=1, phase="backward")  # fmt: skip
    compared = report_of(tmp_path, 1)["predicted_vs_measured"]
    known = {name for name, pair in compared["phases"].items() if pair["error_fraction"] is not None}
    assert known == {"init", "forward"}


def test_init_stands_beside_the_larger_of_load_and_init(tmp_path):
    phases = {"load": gpu_phase(22 * GIB), "init": gpu_phase(18 * GIB), "forward": gpu_phase(28 * GIB)}
    write_rank(tmp_path, 0, phases=phases)
    compared = report_of(tmp_path, 1)["predicted_vs_measured"]
    assert compared["phases"]["init"]["measured"] == 22 * GIB
    assert compared["phases"]["load"] == {"predicted": None, "measured": 22 * GIB, "error_fraction": None}


def test_runs_of_an_older_probe_are_compared_phase_by_phase(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    write_rank(old, 0, phases={name: gpu_phase(size * GIB) for name, size in
                               {"init": 20, "forward": 28, "eval": 5, "other": 40}.items()})  # fmt: skip
    write_rank(new, 0, phases={name: gpu_phase(size * GIB) for name, size in
                               {"load": 10, "init": 21, "forward": 28, "eval": 41, "generate": 3, "save": 9,
                                "other": 2}.items()})  # fmt: skip
    compared = compare_reports(report_of(old, 1), report_of(new, 1))["phases"]
    assert {name: (pair["first"] // GIB, pair["second"] // GIB) for name, pair in compared.items()} == {
        "init": (20, 21), "forward": (28, 28), "other": (40, 41)}  # fmt: skip


def test_the_peak_of_host_memory_is_in_the_phase_that_reached_it_first(tmp_path):
    sizes = {"load": 500, "init": 600, "other": 1001, "forward": 998, "eval": 1000}
    phases = {name: {**gpu_phase(0), "peak_host_rss_bytes": size << 20, "peak_allocated_bytes": None}
              for name, size in sizes.items()}  # fmt: skip
    write_rank(tmp_path, 0, on_gpu=False, device="cpu", phases=phases)
    assert report_of(tmp_path, 1)["ranks"][0]["peak_phase"] == "forward"


def test_a_run_that_was_not_as_planned_says_what_to_do(tmp_path, capsys, monkeypatch):
    """Each difference once below the table, and the command that plans for what ran, which works as it is."""
    run(tmp_path, batch_rows=8)
    plan = {"chosen": CHOSEN, "request": REQUEST, "folder": "my plan"}
    report = reports.report_of(tmp_path, 2, plan=plan, held_to=plan, style="raw")
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/a run")
    zerokit.plan(params="7b", gpus=2, gpu="h200", seq_len=1024, method="lora", global_batch=16).write(folder)
    text = shown(report, folder=folder)
    assert report["outcome"] == "not_as_planned" and text.count("batch size per GPU 8 ran, not 2") == 1
    assert "problem: " not in text and ", with 1 difference from the plan named above" in text
    command = next(line for line in text.splitlines() if line.startswith("  zerokit plan "))
    assert cli.run([*shlex.split(command)[1:], "--json"]) == 0 and Path("my plan/plan.yaml").is_file()
    planned = json.loads(capsys.readouterr().out)
    chosen, request = planned["chosen"], planned["request"]
    assert chosen["micro_batch"] * chosen["gradient_accumulation"] * chosen["data_parallel"] == 16
    assert (chosen["micro_batch"], request["method"], request["gpus"]) == (8, "lora", "2")
    assert "--recipe RUN/plan.yaml --out 'my plan' --micro-batch 8 --global-batch 16\n" in shown(report)
    narrow = shown(report, folder=folder, width=60)
    assert max(map(len, narrow[narrow.index("What to do") :].splitlines()[1:])) <= 60
    lines = narrow[narrow.index("  zerokit plan ") :].split("\n\n")[0]
    assert shlex.split(command) == shlex.split(lines.replace("\\\n", ""))[: len(shlex.split(command))]
    report["predicted_vs_measured"]["plan_folder"] = None
    assert "--recipe RUN/plan.yaml --micro-batch 8 --global-batch 16\n" in shown(report)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_run_without_an_engine_is_compared_with_nothing(tmp_path, on_gpu):
    """Plain DDP: nothing was predicted of it, and its steps are told apart by nobody."""
    for rank in range(2):
        load = {"load": gpu_phase(30 * GIB)}
        write_rank(tmp_path, rank, on_gpu=on_gpu, phases=load, steps=0, micro_steps=0)
    plan = {"chosen": CHOSEN, "request": REQUEST}
    report = reports.report_of(tmp_path, 2, plan=plan, held_to=plan, style="none")
    assert (report["outcome"], report["predicted_vs_measured"]) == ("not_as_planned", None)
    text = shown(report)
    assert "no DeepSpeed engine came up: all of the run counts as load" in text
    assert "--no-plan" in text and "when DeepSpeed began" not in text and " init " not in text


FSDP2 = {
    **CHOSEN, "engine": "fsdp2", "zero_stage": None, "gradient_accumulation": 1, "deepspeed_config": None,
    "sharding": 2, "reshard_after_forward": True, "activation_checkpointing": "none",
}  # fmt: skip
DIVIDED = {
    "type": "engine", "engine": "fsdp2", "zero_stage": None, "precision": "bf16", "dtype": "bfloat16",
    "offload_optimizer": "none", "offload_param": "none", "batch_rows": 2, "batch_columns": 1000,
    "gradient_checkpointing": False, "parameters": 1_000_000, "trainable_parameters": 1_000_000,
    "sharding": 2, "reshard_after_forward": True, "engines": 1,
}  # fmt: skip


def test_what_fsdp2_divides_is_held_to_its_plan() -> None:
    request = {**REQUEST, "engine": "fsdp2"}
    assert of_engine(FSDP2, DIVIDED, request) == []
    kept = {**DIVIDED, "reshard_after_forward": False, "precision": "fp32", "sharding": 8}
    assert {one.what: (one.planned, one.ran) for one in of_engine(FSDP2, kept, request)} == {
        "ranks that share the weights": ("2", "8"), "reshard after forward": ("True", "False"),
        "precision": ("bf16", "fp32"),
    }  # fmt: skip
    (other,) = of_engine(FSDP2, {**ENGINE, "gradient_checkpointing": False, "gradient_accumulation": 1}, None)
    assert other.text == "DeepSpeed divided the training, not FSDP2"
    ran = {"engine": DIVIDED, "steps": 3, "steps_counted_by": "optimizer"}
    assert no_engine([ran], "fsdp2") is None
    assert "no DeepSpeed engine came up" in str(no_engine([ran]))
    assert "FSDP2 divided nothing" in str(no_engine([{**ran, "engine": ENGINE}], "fsdp2"))


def test_peaks_of_fsdp2_stand_beside_the_plans(tmp_path: Path) -> None:
    plan = {"request": {**REQUEST, "engine": "fsdp2"}, "chosen": FSDP2}
    for rank in (0, 1):
        write_rank(tmp_path, rank, extra=[{**DIVIDED, "rank": rank}], micro_steps=12)
    report = report_of(tmp_path, 2, plan=plan)
    compared = report["predicted_vs_measured"]
    assert compared["predicted_for"] == "plan" and not compared["differences"]
    planned = FSDP2["estimate"]["per_rank"][0]["peak_allocated_bytes"]
    assert [pair["predicted"] for pair in compared["per_rank"]] == [planned, planned]
    assert [pair["measured"] for pair in compared["per_rank"]] == [30 * GIB, 30 * GIB]
    other = predict_again(plan, [])
    assert other.plan is None and other.why_not == "a plan for FSDP2 is not estimated again for what ran"


@pytest.mark.parametrize("predicts", [True, False])
def test_an_out_of_memory_is_explained_by_what_ran(tmp_path: Path, predicts: bool) -> None:
    """Not by the plan's figures."""

    def again(plan: Any, found: Any) -> Any:
        chosen = chosen_as_ran(plan["chosen"], found)
        components = {"activations": 9 * GIB, "loss": 3 * GIB}
        entry = {"ranks": [0, 1], "peak_allocated_bytes": 12 * GIB, "phases": {}, "components": components}
        estimate = {**chosen["estimate"], "per_rank": [entry]}
        return PredictedAgain(plan={**plan, "chosen": {**chosen, "estimate": estimate}})

    for rank in range(2):
        engine = {"type": "engine", "rank": rank, "pid": 100 + rank, "micro_batch": 8, "batch_rows": 8}
        failed = [{**OOM, "rank": rank}, {**ERROR, "rank": rank}] if rank else []
        end = {"state": "failed", "exit_code": 1} if rank else {}
        write_rank(tmp_path, rank, extra=[engine, *failed], micro_steps=48, **end)
    planned = {"micro_batch": 4, "gradient_accumulation": 2, "zero_stage": 0, "data_parallel": 2}
    plan = {"chosen": {**planned, **PLAN["chosen"]}, "request": {}}
    report = reports.report_of(tmp_path, 2, plan=plan, predict_again=again if predicts else None)
    failure = report["first_failure"]
    expected = 12 * GIB if predicts else None
    assert failure["oom"].get("predicted_peak_allocated_bytes") == expected
    assert "predicted peak 31.00 GiB" not in shown(report)
