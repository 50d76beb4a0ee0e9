"""An out-of-memory leads to the next plan that would fit, which ``--retry-smaller`` runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Run, wait_for
from tests.support.command import called
from tests.support.packages import needs
from zerokit.launcher.replan import larger_than_memory, share_that_fits

needs("torch")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "scripts" / "needs_small_batch.py"
GIB = 1 << 30


@pytest.fixture(scope="module")
def plan_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real plan for one CPU rank, four sequences a step, in one micro-batch as asked for."""
    folder = tmp_path_factory.mktemp("plan")
    model = str(ROOT / "examples" / "tiny-llama.json")
    code, _, err = called(
        "plan", "--model", model, "--device", "cpu", "--gpus", "1", "--seq-len", "512", "--global-batch", "4",
        "--micro-batch", "4", "--out", str(folder), folder=folder,
    )  # fmt: skip
    assert code == 0, err
    return folder


class Launcher:
    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.runs: list[Run] = []

    def __call__(self, *arguments: str) -> Run:
        self.runs.append(Run(self.python, self.folder, list(arguments), {}))
        return self.runs[-1]


@pytest.fixture
def launch(stub_python: Path, tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(stub_python, tmp_path)
    yield launcher
    for run in launcher.runs:
        run.clean_up()


def report_in(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return value


def test_smaller_plans_are_run_until_one_fits(launch: Launcher, plan_folder: Path) -> None:
    run = launch("--plan", str(plan_folder), "--retry-smaller", str(SCRIPT), "--most", "2")
    code, out, err = run.end(240)
    assert code == 9, err  # it fits, and the stand-in makes no engine
    assert "trained 2 x 2" in out  # the global batch is still 2 × 2
    first = run.report()
    assert (first["outcome"], first["exit_code"]) == ("oom", 10)  # of the first run that stays the truth
    retries = first["retries"]
    assert [retry["exit_code"] for retry in retries] == [10] * (len(retries) - 1) + [9]
    needs = [json.loads((run.run_dir / "report.json").read_text())["first_failure"]["next_plan"]]
    for number, retry in enumerate(retries, 1):
        assert retry["folder"] == f"retry-{number}"
        report = report_in(run.run_dir / retry["folder"])
        assert report["outcome"] == retry["outcome"]
        assert report["retry_of"] == str(run.run_dir)
        if report["outcome"] == "oom":
            needs.append(report["first_failure"]["next_plan"])
    sizes = [need["min_vram_bytes"] for need in needs]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)
    assert all(need["min_vram_bytes"] <= need["limit_bytes"] for need in needs)
    assert "micro-batch 4 → 2" in err
    assert not run.left()


@pytest.mark.slow
def test_retries_are_bounded(launch: Launcher, plan_folder: Path) -> None:
    run = launch("--plan", str(plan_folder), "--retry-smaller", str(SCRIPT), "--most", "0")
    code, out, err = run.end(300)
    assert code == 10, err
    assert "trained" not in out
    assert 1 <= len(run.report()["retries"]) <= 3
    assert "no retry:" in err or "out of memory again, after 3 retries" in err


@pytest.mark.slow
def test_without_the_option_the_next_plan_is_named_and_not_run(launch: Launcher, plan_folder: Path) -> None:
    run = launch("--plan", str(plan_folder), str(SCRIPT), "--most", "2")
    code, out, err = run.end(120)
    assert code == 10, err
    failure = run.report()["first_failure"]
    assert failure["oom"]["asked_bytes"] == 2 * GIB
    assert (run.run_dir / failure["next_plan"]["folder"] / "ds_config.json").is_file()
    assert "next plan that would fit" in out
    assert not list(run.run_dir.glob("retry-*"))


@pytest.mark.slow  # test_smaller_plans_are_run_until_one_fits runs on CPU ranks
def test_a_plan_for_this_machines_gpu_is_made_again_for_less_of_its_memory(
    stub_python: Path, tmp_path: Path
) -> None:
    """The GPU is one that only nvidia-smi speaks of: what is planned again is planned for it."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho '0, GPU-0, NVIDIA H200, 143771, 4, 580.95.05'\n")
    smi.chmod(0o755)
    environment = {"PATH": f"{smi.parent}:{os.environ['PATH']}"}
    model = str(ROOT / "examples" / "tiny-llama.json")
    code, _, err = called(
        "plan", "--model", model, "--gpus", "1", "--seq-len", "512", "--global-batch", "16",
        "--micro-batch", "16", "--out", "plan", folder=tmp_path, **environment,
    )  # fmt: skip
    assert code == 0, err
    options = ["--device", "cuda", "--plan", "plan", "--retry-smaller", str(SCRIPT), "--most", "8"]
    run = Run(stub_python, tmp_path, options, environment)
    try:
        code, _, err = run.end(240)
    finally:
        run.clean_up()
    report = run.report()
    assert "next_plan" in (report["first_failure"] or {}), (report["first_failure"], err)
    following = report["first_failure"]["next_plan"]
    assert following["min_vram_bytes"] <= following["limit_bytes"]
    assert (code, report["retries"][-1]["outcome"]) == (9, "not_as_planned"), err  # no engine: a stand-in


@pytest.mark.slow
def test_a_configuration_that_zerokit_did_not_make_is_not_retried(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"train_micro_batch_size_per_gpu": 4}')
    options = ["--num-ranks", "1", "--retry-smaller", str(SCRIPT), "--deepspeed_config", "own.json"]
    run = launch(*options, "--most", "2")
    code, out, err = run.end(120)
    assert code == 10, err
    assert err.count("no plan was given (--plan or --recipe)") == 2  # before the run, and after it
    assert "no next plan: no plan was given" in out
    assert not list(run.run_dir.glob("retry-*"))


@pytest.mark.slow
def test_a_plan_whose_model_is_gone_is_not_retried(
    launch: Launcher, plan_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "moved"
    folder.mkdir()
    text = (plan_folder / "plan.yaml").read_text()
    (folder / "plan.yaml").write_text(text.replace(str(ROOT / "examples"), "/nowhere"))
    run = launch("--plan", str(folder), "--retry-smaller", str(SCRIPT), "--most", "2")
    code, _, err = run.end(120)
    assert code == 10, err
    (reason,) = (line for line in err.splitlines() if "no retry: " in line)
    assert "--model /nowhere/tiny-llama.json: no such file" in reason


@pytest.mark.slow
def test_an_interrupt_is_not_retried(launch: Launcher, plan_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time\nparse = '--deepspeed_config'\ntime.sleep(600)\n")
    options = ["--style", "raw", "--num-ranks", "1", "--grace", "1", "--retry-smaller"]
    run = launch("--plan", str(plan_folder), *options, str(script))
    run.until_started(1)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end(60)[0] == 130
    assert not list(run.run_dir.glob("retry-*"))
    wait_for(lambda: not run.left(), 5, lambda: f"left: {run.left()}")


@pytest.mark.parametrize(
    ("oom", "share"),
    [
        ({}, None),  # nothing is known of it
        # wanted 88 of the 80 that there were: what comes next is to be predicted a tenth smaller
        ({"allocated_bytes": 78, "asked_bytes": 10, "reserved_bytes": 79, "device_free_bytes": 1,
          "predicted_peak_allocated_bytes": 70}, 80 / 88),
        # others hold half of the device: the prediction was right, and there is less to be had
        ({"allocated_bytes": 39, "asked_bytes": 2, "reserved_bytes": 39, "device_free_bytes": 1,
          "predicted_peak_allocated_bytes": 70}, 40 / 70),
        # a limit for the process: much of the device is free, and cannot be had
        ({"allocated_bytes": 40, "asked_bytes": 2, "reserved_bytes": 41, "device_free_bytes": 39,
          "predicted_peak_allocated_bytes": 60}, 42 / 60),
        # fragmentation: all would have fitted
        ({"allocated_bytes": 60, "asked_bytes": 5, "reserved_bytes": 79, "device_free_bytes": 1,
          "predicted_peak_allocated_bytes": 66}, 0.97),
    ],
)  # fmt: skip
def test_how_much_smaller_the_next_plan_must_be(oom: dict[str, int], share: float | None) -> None:
    assert share_that_fits(oom) == pytest.approx(share)


@pytest.mark.parametrize(
    ("oom", "host_gib", "words"),
    [
        ({"memory": "host", "asked_bytes": 64 * GIB}, 24, "64.00 GiB is more than the whole host has (24.00"),
        ({"memory": "host", "asked_bytes": 64 * GIB}, None, None),  # another machine's
        ({"memory": "host", "asked_bytes": 2 * GIB}, 24, None),
        ({"memory": "gpu", "asked_bytes": 90 * GIB, "device_total_bytes": 80 * GIB}, 999, "GPU has (80"),
        ({"memory": "gpu", "asked_bytes": 70 * GIB, "device_total_bytes": 80 * GIB}, 24, None),
        ({"memory": "gpu", "asked_bytes": None, "device_total_bytes": 80 * GIB}, 24, None),
    ],
)  # fmt: skip
def test_a_request_larger_than_all_memory_is_nothing_that_a_plan_helps_with(
    oom: dict[str, Any], host_gib: int | None, words: str | None
) -> None:
    reason = larger_than_memory(oom, host_gib and host_gib * GIB)
    assert reason is None if words is None else words in str(reason)


@pytest.mark.slow
def test_the_report_of_such_a_request_advises_no_smaller_plan(launch: Launcher, plan_folder: Path) -> None:
    run = launch("--plan", str(plan_folder), str(SCRIPT), "--most", "2", "--asks", str(10**15))
    code, out, err = run.end(120)
    assert code == 10, err
    failure = run.report()["first_failure"]
    assert failure["try_next"] == [] and "next_plan" not in out and "to need less" not in out
    assert "no next plan: one request of 931,322.57 GiB is more than the whole host has" in " ".join(
        out.split()
    )
