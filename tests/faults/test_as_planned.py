"""A script that ends well and does something else than its plan is named early, and is no success."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.plans import write_plan
from tests.support.ranks import write_script
from zerokit.report.what_ran import unlike_plan

needs("deepspeed")
LOOP = """
    import argparse, deepspeed, torch
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    import importlib
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # minutes of C++
    model = torch.nn.Linear(32, 32)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for _ in range(4):
        loss = engine(torch.randn({rows}, 32)).pow(2).mean()
        engine.backward(loss)
        engine.step()
    import time; time.sleep(2)
"""
NO_ENGINE = """
    import argparse, deepspeed, torch
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--cpu", action="store_true", default=True)
    args = parser.parse_args()
    if not args.cpu:
        deepspeed.initialize(args=args)
    print("trained without")
"""


def launch(python: Path, folder: Path, text: str, *options: str, script: str = "") -> Run:
    """On one rank, which is enough to differ from a plan."""
    write_plan(folder / "plan", ranks=1, precision="fp32", micro_batch=2)
    (folder / "train.py").write_text(textwrap.dedent(text))
    command = ["--plan", "plan", *options, script or "train.py"]
    return Run(python, folder, command, {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(("loader", "said"), [(2, []), (4, ["batch size per GPU 4 ran, not 2"]), (None, [])])
def test_a_trainer_is_held_to_what_it_feeds_and_a_pair_is_one_row(
    loader: int | None, said: list[str]
) -> None:
    """DeepSpeed's batch is filled when arguments are parsed; the script may set another one afterwards."""
    engine = {"micro_batch": 2, "batch_rows": 4, "batch_columns": 32, "loader_rows": loader}
    assert unlike_plan({"chosen": {"micro_batch": 2}}, "trainer", [{"engine": engine}]) == said


LATE_BATCH = """
    import torch
    from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    args.per_device_train_batch_size = 4
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128,
                                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
    rows = [{"input_ids": torch.arange(32), "labels": torch.arange(32)}] * 64
    Trainer(model=model, args=args, train_dataset=rows).train()
"""


SHORT_EPOCHS = LATE_BATCH.replace("    args.per_device_train_batch_size = 4\n", "").replace(
    "] * 64", "] * 10"
)


@pytest.mark.slow
def test_an_epoch_that_ends_with_a_short_step_is_as_planned(stub_python: Path, tmp_path: Path) -> None:
    """Five micro-batches of two rows: an epoch is a step of three and one of two."""
    arguments = ["--output_dir", "out", "--num_train_epochs", "2", "--report_to", "none", "--use_cpu"]
    write_plan(tmp_path / "plan", ranks=1, precision="fp32", micro_batch=2, accumulation=3)
    script = write_script(tmp_path, SHORT_EPOCHS)
    run = Run(stub_python, tmp_path, ["--plan", "plan", str(script), *arguments], {"OMP_NUM_THREADS": "1"})
    code, out, err = run.end(240)
    assert code == 0, out + err
    (rank,) = run.report()["ranks"]
    assert (rank["steps"], rank["micro_steps"], rank["most_micro_steps"]) == (4, 10, 3)


@pytest.mark.slow
def test_a_batch_that_a_trainer_script_sets_after_parsing_is_named(stub_python: Path, tmp_path: Path) -> None:
    arguments = ["--output_dir", "out", "--max_steps", "3", "--report_to", "none", "--use_cpu"]
    write_plan(tmp_path / "plan", precision="fp32", micro_batch=2)
    script = write_script(tmp_path, LATE_BATCH)
    run = Run(stub_python, tmp_path, ["--plan", "plan", str(script), *arguments], {"OMP_NUM_THREADS": "1"})
    code, out, err = run.end(240)
    assert "train.py:5 sets args.per_device_train_batch_size to 4 after the arguments are read" in err
    assert code == 9, out + err
    assert "zerokit: not as planned: batch size per GPU 4 ran, not 2" in err


def test_another_batch_is_named_after_the_first_steps_and_ends_with_9(
    stub_python: Path, tmp_path: Path
) -> None:
    run = launch(stub_python, tmp_path, LOOP.format(rows=5))
    code, out, err = run.end(240)
    assert code == 9, out + err
    said = "batch size per GPU 5 ran, not 2"
    assert f"warning: not as planned: {said}" in err and f"zerokit: not as planned: {said}" in err
    report = run.report()
    assert (report["outcome"], report["exit_code"]) == ("not_as_planned", 9)
    assert said in report["problems"]
    assert [rank["state"] for rank in report["ranks"]] == ["finished"]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "options"), [(2, ()), (5, ("--accept-mismatch",))])
def test_what_is_planned_or_accepted_is_a_success(
    stub_python: Path, tmp_path: Path, rows: int, options: tuple[str, ...]
) -> None:
    code, out, err = launch(stub_python, tmp_path, LOOP.format(rows=rows), *options).end(240)
    assert code == 0, out + err


@pytest.mark.slow
def test_a_script_that_never_makes_an_engine_is_no_success(stub_python: Path, tmp_path: Path) -> None:
    run = launch(stub_python, tmp_path, NO_ENGINE, "--accept-mismatch")
    code, out, err = run.end(240)
    assert code == 9, out + err
    assert "trained without" in out and "no DeepSpeed engine came up" in err
    assert run.report()["outcome"] == "not_as_planned"
