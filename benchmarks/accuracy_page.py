"""Writes docs/accuracy.md, its plots and the CSV of every run from the committed measurements.

    python -m benchmarks.accuracy_page            # predicts every run again (minutes), writes the page
    python -m benchmarks.accuracy_page --check    # 1 when the page is not what it would write

Needs the ``train`` extra with the Transformers that the runs were made with (``pip install
transformers==5.17.0``): each run's model is traced as it was. The words are in accuracy.md.j2.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2

from benchmarks import accuracy, autotuner_table, plots, step_time
from benchmarks.accuracy_runs import (
    DATA,
    ROOT,
    SHOWED_AN_ERROR,
    SOURCES,
    STATUSES,
    Run,
    grouped,
    rows_of,
    runs,
)
from benchmarks.common import options_of, rows
from benchmarks.fast_answers import section
from benchmarks.measure import limits, quality
from zerokit.memory.inference import phase_peaks

PAGE = ROOT / "docs" / "accuracy.md"
TEMPLATE = Path(__file__).with_name("accuracy.md.j2")
GIB = 2**30
BARS = (0.01, 0.03)
"""Median and 95th percentile that are aimed at."""
QUALITY = {
    "first": "quality-2gpu",
    "second": "quality-2gpu-second",
    "again": "quality-2gpu-again",
    "four": "quality",
}
"""A section of the page -> the file of the strategies that were run for it."""
_FIRST_VERSIONS = "torch 2.11.0+cu130, cuda 13.0, transformers 5.17.0, deepspeed 0.19.8, gpu NVIDIA H200"
"""Of the rows that name none (tests/data/h200/README.md)."""


def percent(value: float) -> str:
    """A share, with digits enough to tell small errors apart."""
    return f"{value:.3%}" if abs(value) < 0.001 else f"{value:.2%}" if abs(value) < 0.1 else f"{value:.0%}"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|" + "|".join([" --- ", *[" ---: "] * (len(cells) - 1)]) + "|"]


def spread(errors: Iterable[float]) -> tuple[str, str, str]:
    """Median, 95th percentile and worst of the absolute errors."""
    values = sorted(map(abs, errors))
    if not values:
        return ("-", "-", "-")
    return percent(statistics.median(values)), percent(accuracy.quantile(values, 0.95)), percent(values[-1])


def verdict(found: Sequence[Run]) -> str:
    """Whether the runs meet the bars."""
    values = [abs(run.error) for run in found]
    good = statistics.median(values) <= BARS[0] and accuracy.quantile(values, 0.95) <= BARS[1]
    return "met" if good else "missed"


def summary(found: Sequence[Run]) -> list[str]:
    """All runs, then by how they stand to the model."""
    lines = _head("runs", "number", "ranks", "median", "95th percentile", "worst")
    parts = [("**all**", list(found))]
    parts += [(f"{s}: {words}", [run for run in found if run.status == s]) for s, words in STATUSES.items()]
    for title, part in parts:
        ranks = sum(len(run.judged.peaks) for run in part)
        lines.append(_row(title, len(part), ranks, *spread(run.error for run in part)))
    recorded = [run for run in found if run.error_before is not None]
    if recorded:
        ranks = sum(len(run.judged.peaks) for run in recorded)
        errors = spread(run.error_before or 0.0 for run in recorded)
        lines.append(
            _row("predicted before the run: as it was predicted then", len(recorded), ranks, *errors)
        )
    return lines


def phases(found: Sequence[Run]) -> list[str]:
    """The other quantities that the runs show."""
    lines = _head("quantity", "figures", "median", "95th percentile", "worst")
    for name, values in accuracy.errors([run.judged for run in found]).items():
        lines.append(_row(name, len(values), *spread(values)))
    return lines


def _gib(value: int) -> str:
    return f"{value / GIB:.2f}"


def all_runs(found: Sequence[Run]) -> str:
    """Every run as CSV."""
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(("run", "status", "GPUs", "measured", "zerokit", "error"))
    for run in found:
        own = (_gib(run.measured), _gib(run.predicted), f"{run.error:+.2%}")
        lines.writerow((run.name, run.status, run.row["world_size"], *own))
    return file.getvalue()


def versions(found: Sequence[Run]) -> list[tuple[str, int]]:
    """What the runs were made with, and how many were."""
    named = (run.row.get("versions") or {} for run in found)
    listed = Counter(", ".join(f"{k} {v}" for k, v in one.items()) or _FIRST_VERSIONS for one in named)
    return listed.most_common()


def _rows(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    return rows(path) if path.exists() else []


def times_now(name: str) -> str:
    """Mean error of the step times of a file of plan quality, as predicted now."""
    return percent(statistics.mean(abs(step_time.timed(row).error) for row in step_time.rows(name)))


def tuners() -> str:
    """``zerokit plan``, ``zerokit tune`` and DeepSpeed's autotuner on one job."""
    result = json.loads((DATA / "autotuner.json").read_text(encoding="utf-8"))
    return autotuner_table.table(result["answers"])


def serving() -> list[str]:
    """Inference: the pass over the prompts and the longest step after it, as predicted now and before."""
    found = _rows("serving.jsonl")
    lines = _head("run", "GPUs", "batch", "prompt", "tokens made", "peak, GiB", "prompt's error", "before",
                  "steps' error")  # fmt: skip
    for row in found:
        case = accuracy.read_case(row)
        said = phase_peaks(accuracy.profile_of(case), case.job, case.strategy)
        observed = {name: phase["max_alloc"] for name, phase in row["last_step_rank0"].items()}
        errors = {name: accuracy.error((said[name], observed[name])) for name in observed}
        before = accuracy.error((row["expected"]["prefill"], observed["prefill"]))
        lines.append(
            _row(
                f"`{row['id']}`", row["world_size"], row["micro_batch"], row["seq_len"] - row["new_tokens"],
                row["new_tokens"], _gib(max(row["peak_allocated_bytes"])), percent(errors["prefill"]),
                percent(before), percent(errors["decode"]),
            )
        )  # fmt: skip
    return lines if found else []


_LOOPS = {"deepspeed": "DeepSpeed", "plain": "plain"}


def overhead() -> list[str]:
    """What the probe cost, a row for each measurement of ``benchmarks/probe_overhead.py``."""
    found = _rows("probe-overhead.jsonl")
    if not found:
        return []
    lines = _head(
        "device", "loop", "step", "paired difference", "95 % interval", "training thread", "ticker thread"
    )
    for row in found:
        low, high = row["paired_95"]
        lines.append(
            _row(
                row["device"], _LOOPS[row.get("loop", "deepspeed")],
                f"{row['step_seconds'] * 1e3:.0f} ms", f"{row['paired_median']:+.2%}",
                f"{low:+.2%} to {high:+.2%}", f"{row['training_thread_share']:.2%}",
                f"{row['ticker_cpu_share']:.2%}",
            )
        )  # fmt: skip
    return lines


def write_text(found: Sequence[Run]) -> str:
    """The page."""
    worst = sorted(found, key=lambda run: -abs(run.error))[:5]
    counts = sorted({run.row["world_size"] for run in found})
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    text: str = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        number=len(found),
        gpus=", ".join(map(str, counts[:-1])) + f" and {counts[-1]}" if len(counts) > 1 else counts[0],
        families=len({run.row["hf_config"]["model_type"] for run in found}),
        bars=[f"{bar:.0%}" for bar in BARS],
        met=verdict(found),
        blind_met=verdict([run for run in found if run.status == "blind"]),
        summary="\n".join(summary(found)),
        sources=[(source, len(kept)) for source in SOURCES if (kept := rows_of(source))],
        showed=f"{SHOWED_AN_ERROR:.1%}",
        versions=versions(found),
        traced_with=f"torch {version('torch')} and transformers {version('transformers')}",
        phases="\n".join(phases(found)),
        worst="; ".join(f"`{run.name}` {run.error:+.2%}" for run in worst),
        fits=limits.table(fits)[0].splitlines()[-1] if (fits := _rows("fits.jsonl")) else "",
        quality={
            key: (quality.table(_rows(f"{name}.jsonl")).partition("\n\n")[2], times_now(name))
            for key, name in QUALITY.items()
        },
        tuners=tuners(),
        overhead="\n".join(overhead()),
        serving="\n".join(serving()),
        trainers=section.section(),
    )
    return text


def drawings(found: Sequence[Run]) -> dict[str, str]:
    """File name -> SVG."""

    def own(*statuses: str) -> list[tuple[float, float]]:
        return [(run.measured / GIB, run.predicted / GIB) for run in found if run.status in statuses]

    series = [
        plots.Series(title="zerokit, seen or corrected", colour="#7fb0dd", points=own("seen", "corrected")),
        plots.Series(title="zerokit, blind", colour="#0b4f8a", points=own("blind")),
    ]
    errors = {
        group: {name: [abs(run.error) for run in part] for name, part in inside.items()}
        for group, inside in grouped(found).items()
    }
    return {
        "accuracy-peaks.svg": plots.scatter(
            series, title="Peak memory of a GPU", across="measured, GiB", up="predicted, GiB"
        ),
        "accuracy-groups.svg": plots.strips(errors, title="|error| of the peak, every run"),
    }


def main() -> int:
    """Write the page, or compare it."""
    parser = options_of(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when the page would change")
    options = parser.parse_args()
    found = runs()
    texts = {PAGE.name: write_text(found), "accuracy-runs.csv": all_runs(found), **drawings(found)}
    if options.check:
        stale = [name for name, text in texts.items() if not _same(PAGE.parent / name, text)]
        print(f"would change: {', '.join(stale)}" if stale else "the page is up to date")
        return 1 if stale else 0
    PAGE.parent.mkdir(exist_ok=True)
    for name, text in texts.items():
        (PAGE.parent / name).write_text(text, encoding="utf-8")
    print("\n".join(summary(found)))
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
