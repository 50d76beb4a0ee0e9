"""Step times of bare loops, predicted by the time model at the host's measured speed, beside measured ones.

    python -m benchmarks.bare_loop_times ROWS.jsonl               # rows of benchmarks.measure.series
    python -m benchmarks.bare_loop_times CASES.json --hosts 0.6 0.8 1.0   # before there is a measurement

A row has its host's probe beside it (``host_factor``); a case is predicted at the hosts given.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import options_of
from benchmarks.measure import case as cases
from zerokit.catalog import gpus
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Strategy
from zerokit.search.plan import trainable_parameters
from zerokit.timing.constants import HUGGING_FACE, Calibration
from zerokit.timing.host_speed import HostSpeed
from zerokit.timing.ranges import unmeasured
from zerokit.timing.step_time import TimeModel

THROUGH_DEEPSPEED = 1.27
"""What a round of the probe took between the steps of ZeRO-3, over one through torch's own linear: the middle
of ``model`` over ``warm`` in ``zero-3-waiting.jsonl``. ``zero.Init`` leaves DeepSpeed's linear behind."""


def host_of(row: Mapping[str, Any]) -> HostSpeed:
    """The host of a row that was probed on all ranks."""
    factor, (low, high) = row["host_factor"], _spread(row)
    slowed = THROUGH_DEEPSPEED if "host_rounds" in row and "rounds_before" not in row else 1.0
    return HostSpeed(factor=factor / slowed, source="the row's probe", low=low / slowed, high=high / slowed)


def predicted_seconds(case: Mapping[str, Any], host: HostSpeed, gpu: str = "h200") -> float:
    """Seconds of a step as the planner counts them, on a host of this speed."""
    model, strategy = _model(case, host, gpu)
    return model.estimate(strategy).step_seconds


def _model(case: Mapping[str, Any], host: HostSpeed, gpu: str = "h200") -> tuple[TimeModel, Strategy]:
    job, strategy = cases.job_and_strategy(case)
    shape = from_config(case["hf_config"], name=case["id"])
    cluster = Cluster(gpu=gpus.load(gpu), gpus=strategy.world_size, nodes=1)
    calibration = Calibration(host_factor=host.factor, host_factor_low=host.low, host_factor_high=host.high)
    model = TimeModel(shape, job, cluster, HUGGING_FACE, calibration, trainable_parameters(shape, job))
    return model, strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A measured row as predicted. Seconds; ``low`` and ``high`` as the probe's rounds spread."""

    engine: str
    host: HostSpeed
    measured: float
    seconds: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.seconds / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time is within the range."""
        return self.low <= self.measured <= self.high


def loops(rows: Iterable[Mapping[str, Any]]) -> Iterator[Loop]:
    """Predict each row that has a step time."""
    return (_loop(row) for row in rows if "error" not in row)


def _loop(row: Mapping[str, Any]) -> Loop:
    host = host_of(row)
    model, strategy = _model(row, host)
    of_host = next(iter(unmeasured(model, strategy)))
    return Loop(
        engine=strategy.settings.title,
        host=host,
        measured=row["step_seconds_median"],
        seconds=model.estimate(strategy).step_seconds,
        low=of_host.fast.estimate(strategy).step_seconds,
        high=of_host.slow.estimate(strategy).step_seconds,
    )


def _spread(row: Mapping[str, Any]) -> list[float]:
    """Of the probe: of nine tenths of its rounds, or before and after the run in older rows."""
    return list(row.get("host_factor_range") or row["host_factor_before_and_after"])


def main() -> None:
    """A line for each row or case, and the mean error."""
    parser = options_of(__doc__)
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
            hosts = [HostSpeed(factor=factor, source="--hosts") for factor in options.hosts]
            said = "  ".join(f"{host.factor}: {predicted_seconds(case, host):.3f} s" for host in hosts)
            print(f"{row['id']:<34} {said}")
            continue
        loop = _loop(row)
        errors.setdefault(loop.engine, []).append(loop.error)
        steps, host = sorted(row["step_seconds"]), loop.host
        print(
            f"{row['id']:<34} host {host.factor:.2f} ({host.low:.2f} to {host.high:.2f})  "
            f"measured {measured:.3f} s (median {row['step_seconds_median']:.3f}, {steps[0]:.3f} to "
            f"{steps[-1]:.3f})  predicted {loop.seconds:.3f} ({loop.low:.3f} to {loop.high:.3f})  "
            f"{100 * loop.error:+.1f} %"
        )
    for kind, found in errors.items():
        sizes = [abs(entry) for entry in found]
        mean, worst = 100 * statistics.mean(sizes), 100 * max(sizes)
        print(f"{kind}: {len(found)} rows, mean error {mean:.1f} %, worst {worst:.1f} %")


if __name__ == "__main__":
    main()
