"""Step times of bare loops, predicted by the time model at the host's measured speed, beside measured ones.

    python -m benchmarks.bare_loop_times ROWS.jsonl               # rows of benchmarks.measure.series
    python -m benchmarks.bare_loop_times CASES.json --hosts 0.6 0.8 1.0   # before there is a measurement

A row has its host's probe beside it (``host_factor``); a case is predicted at the hosts given.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import case as cases
from zerokit.catalog import gpus
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.search.plan import trainable_parameters
from zerokit.timing.constants import HUGGING_FACE, Calibration
from zerokit.timing.step_time import TimeModel


def predicted_seconds(case: Mapping[str, Any], host_factor: float, gpu: str = "h200") -> float:
    """Seconds of a step as the planner counts them, on a host of this speed."""
    job, strategy = cases.job_and_strategy(case)
    shape = from_config(case["hf_config"], name=case["id"])
    cluster = Cluster(gpu=gpus.load(gpu), gpus=strategy.world_size, nodes=1)
    calibration = Calibration(host_factor=host_factor)
    model = TimeModel(shape, job, cluster, HUGGING_FACE, calibration, trainable_parameters(shape, job))
    return model.estimate(strategy).step_seconds


def _spread(row: Mapping[str, Any]) -> list[float]:
    """Of the probe: of nine tenths of its rounds, or before and after the run in older rows."""
    return list(row.get("host_factor_range") or row["host_factor_before_and_after"])


def main() -> None:
    """A line for each row or case, and the mean error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--hosts", type=float, nargs="+", default=[0.6, 0.8, 1.0])
    options = parser.parse_args()
    errors: dict[str, list[float]] = {}
    for row in (record for path in options.rows for record in cases.read(path)):
        measured = row.get("step_seconds_mean")
        if "error" in row:
            said = (row["error"].strip().splitlines() or ["it did not end in time"])[-1]
            print(f"{row['id']:<34} failed: {said[:80]}")
            continue
        if measured is None:
            case = cases.complete(row)
            said = "  ".join(f"{host}: {predicted_seconds(case, host):.3f} s" for host in options.hosts)
            print(f"{row['id']:<34} {said}")
            continue
        seconds = predicted_seconds(row, row["host_factor"])
        error = seconds / row["step_seconds_median"] - 1
        stage = row["deepspeed_config"]["zero_optimization"]["stage"]
        errors.setdefault("ZeRO-3" if stage == 3 else "ZeRO-0 to 2", []).append(error)
        steps = sorted(row["step_seconds"])
        print(
            f"{row['id']:<34} host {row['host_factor']:.2f} {_spread(row)}  "
            f"measured {measured:.3f} s (median {row['step_seconds_median']:.3f}, {steps[0]:.3f} to "
            f"{steps[-1]:.3f})  predicted {seconds:.3f}  {100 * error:+.1f} %"
        )
    for kind, found in errors.items():
        sizes = [abs(entry) for entry in found]
        mean, worst = 100 * statistics.mean(sizes), 100 * max(sizes)
        print(f"{kind}: {len(found)} rows, mean error {mean:.1f} %, worst {worst:.1f} %")


if __name__ == "__main__":
    main()
