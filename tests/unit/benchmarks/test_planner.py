"""The time model against runs that others published, and against runs on H200s."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stacks import MEGATRON, fsdp_stack
from zerokit.catalog import gpus

ROOT = Path(__file__).resolve().parents[3]


def published(name: str) -> list[tuple[float, float]]:
    """(predicted, measured) seconds of the runs in tests/data."""
    pytest.importorskip("numpy")
    from benchmarks import planner

    if name in planner.FSDP_FILES:
        runs = planner.fsdp_runs(planner.FSDP_FILES[name], gpus.load(name))
        return list(zip(planner.predict(runs, fsdp_stack(name)), [run.seconds for run in runs], strict=True))
    runs = planner.megatron_runs(planner.MEGATRON_FILE, gpus.load("a100-40gb"))
    return list(zip(planner.predict(runs, MEGATRON), [run.seconds for run in runs], strict=True))


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("a100-80gb", 0.06),
        ("a100-40gb", 0.09),
        ("h100-sxm-80gb", 0.09),
        ("megatron", 0.15),
    ],
)
def test_time_error_on_published_runs_with_catalogue_constants(name: str, bar: float) -> None:
    errors = [abs(predicted / measured - 1) for predicted, measured in published(name)]
    assert len(errors) > 50
    assert statistics.mean(errors) <= bar


def test_regret_on_published_runs_with_catalogue_constants() -> None:
    pytest.importorskip("numpy")
    from benchmarks import planner

    runs = planner.megatron_runs(planner.MEGATRON_FILE, gpus.load("a100-40gb"))
    regret = planner.regrets(runs, planner.predict(runs, MEGATRON))
    assert len(regret) == 60
    assert statistics.mean(regret) <= 0.05
    assert statistics.mean(regret) < statistics.mean(planner.regrets(runs, planner.rule_of_thumb(runs)))


@pytest.mark.parametrize(
    ("rows", "bar"),
    [
        ("kernels", 0.04),
        ("quality", 0.13),  # nobody probed its hosts, which were fast
        ("quality-2gpu", 0.10),
        ("quality-2gpu-second", 0.10),
        ("h200-deepspeed", 0.18),
    ],
)
def test_time_error_on_h200_runs(rows: str, bar: float) -> None:
    """GPU seconds of profiled kernels; steps of runs alone on their host; of runs that shared theirs."""
    from benchmarks import step_time

    runs = step_time.kernels() if rows == "kernels" else list(map(step_time.timed, step_time.rows(rows)))
    assert len(runs) >= 15
    assert statistics.mean(abs(run.error) for run in runs) <= bar


@pytest.mark.slow
def test_the_documented_command_prints_every_bar() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planner"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = {
        line[:52].strip(): [float(cell.rstrip("%")) for cell in line[52:].split()]
        for line in done.stdout.splitlines()
        if "%" in line
    }
    error, _, regret, worst, of_three, _ = rows["shape left out: constants and layer factors"]
    assert error <= 8 and regret <= 3 and worst <= 12 and of_three <= 0.3
    assert rows["one efficiency constant, model size left out"][0] <= 8
    assert all(math.isfinite(cell) for cells in rows.values() for cell in cells)


def test_every_published_fsdp_run_is_judged_to_fit() -> None:
    pytest.importorskip("numpy")
    from benchmarks import planner

    runs = planner.fsdp_runs(planner.FSDP_FILE, gpus.load("a100-80gb"))
    assert [run.shape.name for run in runs if not planner.fits(run)] == []


def test_checkpointed_fsdp_runs_that_surprise_are_those_whose_time_a_plan_calls_unsure() -> None:
    """llm-foundry's: all that took more than 18 % longer than predicted left room for few gathered layers."""
    pytest.importorskip("numpy")
    from benchmarks import planner

    longer: dict[bool, list[float]] = {True: [], False: []}
    for name, path in planner.FSDP_FILES.items():
        runs = planner.fsdp_runs(path, gpus.load(name))
        for run, seconds in zip(runs, planner.predict(runs, planner.fsdp_stack(name)), strict=True):
            if run.strategy.checkpointing == "full":
                longer[planner.near_limit(run)].append(run.seconds / seconds - 1)
    assert len(longer[True]) == 9 and len(longer[False]) == 69
    assert max(longer[False]) < 0.16 < 0.18 < min(longer[True]) and 0.48 < max(longer[True]) < 0.50


def test_a_run_whose_host_was_probed_is_predicted_for_that_host() -> None:
    from benchmarks import step_time

    row = next(r for r in step_time.rows("bare-loops-2gpu") if r["id"] == "qwen3-0.6b.w2.z3.b2.s1024")
    usual = step_time.timed({**row, "host_factor": None})
    probed = step_time.timed(row)  # 1.29 times the reference host's seconds; launches take most of the step
    assert probed.measured == row["step_seconds_median"]
    assert abs(probed.error) < abs(usual.error) and usual.error < -0.2
