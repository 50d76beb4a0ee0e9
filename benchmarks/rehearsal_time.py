"""Rehearsed step times beside measured ones.

    python -m benchmarks.rehearsal_time                        # the given rows
    python -m benchmarks.rehearsal_time sft.z2 --host 0.9      # some of them, on a host of that speed

Each line: measured seconds; predicted on the usual host (the middle of those measured) with the error; the
range over the hosts that were measured and whether the measured time is in it; what paces the step. No host
of a given row was probed, so there is no factor to apply: ``--host`` is for rows with a probe beside them
(``host_factor`` in the row).
Nothing is fitted to these rows. ``--keep DIR`` keeps the recorded operators, ``--from DIR`` reads them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bare_loop_times import THROUGH_DEEPSPEED
from benchmarks.common import options_of
from benchmarks.rehearsal.__main__ import Bench, allocator_of_run
from benchmarks.rehearsal.rows import DATA, MeasuredRun, timed_runs
from zerokit.catalog import gpus
from zerokit.machine import measured as measurements
from zerokit.planner.calibration import of_measured
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import Senders
from zerokit.rehearsal.script import PlanUse
from zerokit.rehearsal.step_time import recorded
from zerokit.rehearsal.zygote import Zygote
from zerokit.temporary import temporary_folder
from zerokit.timing import operators
from zerokit.timing.constants import Calibration
from zerokit.timing.host_speed import HostSpeed
from zerokit.timing.recorded_step import StepTime, step_time

PIPELINE = "zerokit: tests/rehearsal/scripts/pipeline_llama.py"
Streams = dict[int, list[operators.IssuedOperator]]
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75)


def main() -> int:
    """Print the rows that were asked for."""
    parser = options_of(__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of rows")
    parser.add_argument("--rows", type=Path, default=DATA / "h200-script-times.jsonl")
    parser.add_argument(
        "--measured", type=Path, help="`doctor --measure --json` of the rows' machine: its rates are used"
    )
    parser.add_argument("--gpu", default="h200", help="predicted for where a row does not name its GPU")
    parser.add_argument("--host", type=float, help="the host's factor, for rows that hold none")
    parser.add_argument("--deepspeed-examples", type=Path, help="a copy of that repository, for its scripts")
    parser.add_argument("--transformers", type=Path, help="a copy of that repository, for its examples")
    parser.add_argument("--keep", type=Path, help="keep the recorded operators there")
    parser.add_argument("--from", dest="kept", type=Path, help="read operators kept before")
    parser.add_argument("--jsonl", type=Path, help="append predictions by the host's factor there")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    paths = ("rows", "measured", "keep", "kept", "jsonl", "deepspeed_examples", "transformers")
    for name in paths:  # the folder is changed later
        path = getattr(options, name)
        setattr(options, name, path.resolve() if path else None)
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
        times = Times(Path(folder), options)
        for run in timed_runs(options.rows):
            if not options.names or any(part in run.name for part in options.names):
                times.compare(run)
    times.summary()
    return 0


def recorded_rows(request: RehearsalRequest, allocator: str) -> dict[int, Any]:
    """Rehearse; the operators of each rank that was, as rows. Raises RuntimeError: it stopped."""
    with (
        temporary_folder("messages") as folder,
        allocator_of_run(allocator),
        Zygote(request.target) as zygote,
    ):
        senders = Senders(folder.resolve(), zygote)
        done = senders.rehearse(request)
        if done.stopped is not None:
            raise RuntimeError(f"{done.stopped.location}: {done.stopped.reason[:300]}")
        return {rank: json.loads(recorded(folder, rank).read_text()) for rank in senders.rehearsed}


class Times:
    """The rows so far."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = folder
        self.gpu = gpus.load(options.gpu)
        self._bench: Bench | None = None
        self._machine: Calibration | None = None
        if options.measured:
            values = json.loads(options.measured.read_text())
            self._machine = of_measured(measurements.from_dict(values.get("measured", values)), "--measured")
        self._errors: list[float] = []
        self._known_errors: list[float] = []
        self._inside = 0
        self._unanswered: list[str] = []

    def compare(self, run: MeasuredRun) -> None:
        """One line."""
        name, measured = run.name, run.row.get("step_seconds_median", 0.0)
        if title := run.row.get("versions", {}).get("gpu"):
            self.gpu = gpus.lookup(title)
        try:
            streams = self._streams(run)
            found = self._timed(streams, run.gpus)
        except Exception as error:
            self._unanswered.append(name)
            print(f"{name:<32} measured {measured:.4f} s  no answer: {error}", flush=True)
            return
        if self.options.jsonl:
            self._keep(run, streams)
        if not measured:
            print(
                f"{name:<32} predicted {found.seconds:.4f} s  range {found.low:.4f} to {found.high:.4f}  "
                f"{_why(found)}",
                flush=True,
            )
            return
        error = found.seconds / measured - 1
        self._errors.append(abs(error))
        inside = found.low <= measured <= found.high
        self._inside += inside
        print(
            f"{name:<32} measured {measured:.4f} s  predicted {found.seconds:.4f} {100 * error:+.1f} %  "
            f"range {found.low:.4f} to {found.high:.4f} ({'inside' if inside else 'outside'})  "
            f"{self._known(streams, measured, run)}{_why(found)}",
            flush=True,
        )

    def _timed(self, streams: Streams, ranks: int, **known: Any) -> StepTime:
        """Of all ranks that were recorded together: the stages of a pipeline."""
        rank, *others = streams
        return step_time(
            streams[rank], self.gpu, ranks, rank=rank, others={one: streams[one] for one in others}, **known
        )

    def _keep(self, run: MeasuredRun, streams: Streams) -> None:
        """The prediction by the host's factor, for a row that is yet to be measured."""
        by_factor = {
            factor: round(self._timed(streams, run.gpus, host=_host(factor, run, "")).seconds, 5)
            for factor in FACTORS
        }
        with self.options.jsonl.open("a") as file:
            line = {"name": run.name, "gpu": self.gpu.name, "seconds_by_host_factor": by_factor}
            file.write(json.dumps(line) + "\n")

    def _known(self, streams: Streams, measured: float, run: MeasuredRun) -> str:
        """The prediction where the host was probed."""
        given = run.row.get("host_factor")
        factor = given or self.options.host
        if not factor:
            return ""
        host = _host(factor, run, "the row's probe" if given else "--host")
        rates = self._machine or Calibration(**run.row.get("host_rates", {}))
        found = self._timed(streams, run.gpus, host=host, calibration=rates)
        error = found.seconds / measured - 1
        self._known_errors.append(abs(error))
        return f"host {host.factor:.2f}: {found.seconds:.4f} {100 * error:+.1f} %  "

    def _streams(self, run: MeasuredRun) -> Streams:
        kept = (self.options.kept or self.options.keep or self.folder).resolve() / f"{run.name}.json"
        if self.options.kept is None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(self._record(run)))
        rows = json.loads(kept.read_text())
        by_rank = {int(rank): rows[rank] for rank in rows} if isinstance(rows, dict) else {0: rows}
        return {rank: list(operators.from_rows(found)) for rank, found in by_rank.items()}

    def _record(self, run: MeasuredRun) -> Any:
        """Rows of operators: rank 0's, or by rank where ranks work on what others send."""
        if self._bench is None:
            self._bench = Bench(self.folder, self.options)
            os.chdir(self._bench.inputs.folder)  # finetune_llama.py reads tatsu-lab/alpaca from there
        target, plan, allocator, launcher = self._bench._target(run)
        is_pipeline = run.script == PIPELINE
        request = RehearsalRequest(
            target=target,
            gpu=self.gpu,
            gpus=run.gpus,
            rank=run.gpus - 1 if is_pipeline else 0,  # the last stage works on what all others send
            plan=PlanUse(folder=plan),
            launcher=launcher,
            no_cache=True,
            steps=self.options.steps,
        )
        rows = recorded_rows(request, allocator)
        return rows if is_pipeline else rows[0]

    def summary(self) -> None:
        """Over all rows."""
        if self._errors:
            print(
                f"{len(self._errors)} rows: mean error {100 * statistics.mean(self._errors):.1f} % on the "
                f"usual host, largest {100 * max(self._errors):.1f} %; {self._inside} inside the range"
            )
        if self._known_errors:
            print(
                f"{len(self._known_errors)} rows with a host's factor: mean error "
                f"{100 * statistics.mean(self._known_errors):.1f} %, largest "
                f"{100 * max(self._known_errors):.1f} %"
            )
        if self._unanswered:
            print(f"without answer: {', '.join(self._unanswered)}")


def _host(factor: float, run: MeasuredRun, source: str) -> HostSpeed:
    """The host's speed, with its spread where the row has one and the factor is its own."""
    low, high, slowed = None, None, 1.0
    if factor == run.row.get("host_factor"):
        low, high = run.row.get("host_factor_range") or (None, None)
        if run.deepspeed_config.get("zero_optimization", {}).get("stage") == 3:
            slowed = THROUGH_DEEPSPEED  # probed between the steps
    edges = [edge and edge / slowed for edge in (low, high)]
    return HostSpeed(factor=factor / slowed, source=source, low=edges[0], high=edges[1])


def _why(found: StepTime) -> str:
    shown = ("host", "gpu", "collectives", "copies", "cpu adam")
    parts = ", ".join(f"{name} {found.parts[name]:.4f}" for name in shown if name in found.parts)
    return f"paced by {found.paced_by}: {parts}"


if __name__ == "__main__":
    sys.exit(main())
