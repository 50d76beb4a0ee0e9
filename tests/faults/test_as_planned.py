"""A script that ends well and does something else than its plan is named early, and is no success."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.plans import write_plan

pytest.importorskip("deepspeed")
LOOP = """
    import argparse, deepspeed, torch
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
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
    write_plan(folder / "plan", precision="fp32", micro_batch=2)
    (folder / "train.py").write_text(textwrap.dedent(text))
    command = ["--plan", "plan", *options, script or "train.py"]
    return Run(python, folder, command, {"OMP_NUM_THREADS": "1"})


def test_another_batch_is_named_after_the_first_steps_and_ends_with_9(
    stub_python: Path, tmp_path: Path
) -> None:
    run = launch(stub_python, tmp_path, LOOP.format(rows=5))
    code, out, err = run.end(240)
    assert code == 9, out + err
    said = "batch size per GPU 5 ran, not 2"
    assert f"warning: not as planned: {said}" in err and f"not_as_planned: {said}" in err
    report = run.report()
    assert (report["outcome"], report["exit_code"]) == ("not_as_planned", 9)
    assert said in report["problems"]
    assert [rank["state"] for rank in report["ranks"]] == ["finished"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "options"), [(2, ()), (5, ("--accept-mismatch",))])
def test_what_is_planned_or_accepted_is_a_success(
    stub_python: Path, tmp_path: Path, rows: int, options: tuple[str, ...]
) -> None:
    code, out, err = launch(stub_python, tmp_path, LOOP.format(rows=rows), *options).end(240)
    assert code == 0, out + err


def test_a_script_that_never_makes_an_engine_is_no_success(stub_python: Path, tmp_path: Path) -> None:
    run = launch(stub_python, tmp_path, NO_ENGINE, "--accept-mismatch")
    code, out, err = run.end(240)
    assert code == 9, out + err
    assert "trained without" in out and "no DeepSpeed engine came up" in err
    assert run.report()["outcome"] == "not_as_planned"
