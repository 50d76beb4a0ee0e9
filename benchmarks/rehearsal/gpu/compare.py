"""Predicted beside measured: ``python -m benchmarks.rehearsal.gpu.compare PREDICTED MEASURED…``.

A phase that was predicted as a lower bound ("at least") is right where the run took no less; it does not join
the errors of the figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path


def beside(said: dict[str, int], measured: dict[str, int]) -> dict[str, int]:
    """What was said of each measured phase. A run without a ``generate`` of its own (the sixth and the
    seventh list were measured so) has it in ``other``."""
    found = {phase: said.get(phase, 0) for phase in measured}
    if "generate" not in measured and "other" in measured:
        found["other"] = max(found["other"], said.get("generate", 0))
    return found


def main() -> None:
    """A line for each measured case and the summary."""
    predicted_path, *measured_paths = map(Path, sys.argv[1:])
    predicted = {row["name"]: row for row in map(json.loads, predicted_path.read_text().splitlines())}
    errors: list[float] = []
    bounds: list[bool] = []
    for path in measured_paths:
        for measured in map(json.loads, path.read_text().splitlines()):
            said = predicted.get(measured["name"])
            stopped = "stopped in its rehearsal" if said and said.get("complete") is False else None
            if measured.get("error") or said is None or stopped:
                why = (measured.get("error") or stopped or "no prediction")[-200:]
                print(f"{measured['name']:<28} not compared: {why}")
                continue
            cells = []
            figures = beside(said["phases"], measured["phases"])
            for phase, size in measured["phases"].items():
                difference = figures[phase] - size
                if phase in said.get("lower_bounds", {}):
                    bounds.append(difference <= 0)
                    cells.append(f"{phase} {size} at least {difference:+d}")
                    continue
                errors.append(abs(difference) / max(size, 1))
                cells.append(f"{phase} {size} {difference:+d}")
            off = {
                name: 100 * (said[f"peak_{name}_bytes"] / measured[f"peak_{name}_bytes"] - 1)
                for name in ("allocated", "reserved")
            }
            print(
                f"{measured['name']:<28} peak {measured['peak_allocated_bytes']} {off['allocated']:+.3f}%  "
                f"reserved {off['reserved']:+.2f}%  {'  '.join(cells)}"
            )
    if bounds:
        print(f"{len(bounds)} lower bounds, {sum(bounds)} of them at most what was measured")
    if errors:
        ordered = sorted(errors)
        print(
            f"{len(errors)} phases: median {100 * statistics.median(errors):.4f} %, 95th percentile "
            f"{100 * ordered[int(len(ordered) * 0.95)]:.3f} %, worst {100 * ordered[-1]:.3f} %"
        )


if __name__ == "__main__":
    main()
