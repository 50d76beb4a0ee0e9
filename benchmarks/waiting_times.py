"""Rehearsed step times of measured bare loops, beside the measured and the planned ones.

    python -m benchmarks.waiting_times ROWS.jsonl [NAME…]          # some 40 s a row
    python -m benchmarks.waiting_times ROWS.jsonl --keep DIR       # operators are kept there, and read again

Rows are those of ``benchmarks.measure.series``, with the host's probe beside them: both predictions are made
at its factor. ``--lanes``: the host's seconds by phase on the reference host, as rehearsed.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bare_loop_times import host_of, predicted_seconds
from benchmarks.common import options_of
from benchmarks.measure import case as cases
from benchmarks.rehearsal.__main__ import HERE
from benchmarks.rehearsal_time import recorded_rows
from zerokit.catalog import gpus
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.script.entry_points import Target
from zerokit.timing import operators, playing, recorded_step

GPU = "h200"


def main() -> None:
    """A line for each row, and the mean errors."""
    parser = options_of(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("names", nargs="*", help="parts of the rows' names")
    parser.add_argument("--keep", type=Path, help="keep the recorded operators there")
    parser.add_argument("--lanes", action="store_true")
    options = parser.parse_args()
    errors: dict[str, list[float]] = {"rehearsed": [], "planned": []}
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
        for row in cases.read(options.rows):
            if "step_seconds_median" not in row or not _asked(row["id"], options.names):
                continue
            events = _events(row, (options.keep or Path(folder)).resolve())
            _compare(row, events, errors, options.lanes)
    for name, found in errors.items():
        sizes = [abs(error) for error in found]
        print(
            f"{name}: {len(found)} rows, mean error {100 * statistics.mean(sizes):.1f} % "
            f"(mean {100 * statistics.mean(found):+.1f} %), worst {100 * max(sizes):.1f} %"
        )


def _asked(name: str, parts: list[str]) -> bool:
    return not parts or any(part in name for part in parts)


def _compare(
    row: Mapping[str, Any],
    events: list[operators.IssuedOperator],
    errors: dict[str, list[float]],
    lanes: bool,
) -> None:
    host = host_of(row)
    found = recorded_step.step_time(events, gpus.load(GPU), row["world_size"], host=host)
    measured = row["step_seconds_median"]
    planned = predicted_seconds(row, host, GPU)
    inside = "inside" if found.low <= measured <= found.high else "outside"
    said = []
    for name, seconds in (("rehearsed", found.seconds), ("planned", planned)):
        error = seconds / measured - 1
        errors[name].append(error)
        said.append(f"{name} {seconds:.3f} ({100 * error:+.1f} %)")
    print(f"{row['id']:<38} host {host.factor:.2f}  measured {measured:.3f} s  {'  '.join(said)}  {inside}")
    if lanes:
        prices = recorded_step.prices(gpus.load(GPU), row["world_size"])(1.0, "")
        played = playing.play_together({0: events}, prices)[0]
        phases = "  ".join(f"{name} {seconds:.3f}" for name, seconds in played.host_phases.items())
        print(f"    host {played.host_seconds:.3f}: {phases}; GPU {played.gpu_seconds:.3f}")


def _events(row: Mapping[str, Any], folder: Path) -> list[operators.IssuedOperator]:
    kept = folder / f"{row['id']}.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_record(row, folder)))
    return list(operators.from_rows(json.loads(kept.read_text())))


def _record(row: Mapping[str, Any], folder: Path) -> Any:
    case = folder / f"{row['id']}.row.json"
    case.write_text(json.dumps(row))
    target = Target(
        script=str(HERE / "raw_loop.py"), module=None, arguments=(str(case), str(folder / "out.json"))
    )
    request = RehearsalRequest(
        target=target, gpu=gpus.load(GPU), gpus=row["world_size"], no_cache=True, steps=100, writable=folder
    )
    return recorded_rows(request, row["alloc_conf"] or "")[0]


if __name__ == "__main__":
    main()
