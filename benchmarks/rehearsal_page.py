"""Writes docs/rehearsal-accuracy.md: rehearsals beside the runs that were measured, from the committed rows.

    python -m benchmarks.rehearsal_page            # writes the page
    python -m benchmarks.rehearsal_page --check    # 1 when the page is not what it would write

Nothing is rehearsed here: a prediction is the row that was written before the run, and a step time is read
off it at the speed that the probe found between the run's own steps.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import quantile
from benchmarks.common import options_of, rows
from zerokit.timing.host_speed import HostSpeed, of_slowest
from zerokit.units import GIB, MIB

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rehearsal-accuracy.md"
DATA = ROOT / "benchmarks" / "measure" / "data"
PREDICTED = ROOT / "benchmarks" / "rehearsal"
_SMALLEST_PHASE = MIB
"""Smaller phases (a barrier's tensor) tell nothing as a share."""


@dataclass(frozen=True)
class Peaks:
    """A list of scripts whose memory was rehearsed and measured. ``predicted``, ``measured``: names of files
    in ``benchmarks/measure/data``. ``words``: what the list holds."""

    predicted: str
    measured: str
    words: str


PEAKS = {
    "cases": Peaks(
        "rehearsed-cases.jsonl",
        "rehearsed-cases-measured.jsonl",
        "scripts of TRL, Transformers and Accelerate, and plain loops; five on two GPUs",
    ),
    "cases, two GPUs again": Peaks(
        "rehearsed-cases-second.jsonl",
        "rehearsed-cases-measured.jsonl",
        "the five on two GPUs, predicted again before they were measured",
    ),
}
_PUBLIC = {
    "": "public scripts, unmodified",
    "second": "other scripts, or models and settings that were never measured",
    "third": "others again; twelve on two GPUs",
    "third, corrected": "some of these, rehearsed again after what they had shown was corrected",
    "fourth": "others again, with nothing changed after; five on two GPUs",
    "fifth": "others again, on one GPU: models and options that were not tried before",
    "fifth, corrected": "those that what it had shown concerns, rehearsed again after it was corrected",
    "sixth": "others again, each on two H100s, and both stages of four pipelines",
    "seventh": "others again, each on four H200s, ten of them as another rank than the first",
    "eighth": "TRL's scripts on one GPU with other models and options again",
    "ninth": "Axolotl and LLaMA-Factory, never rehearsed or measured before, with their own pins; seven on "
    "two H200s",
    "ninth, corrected": "LLaMA-Factory's DPO, rehearsed again after the copy that its log_softmax makes "
    "was counted",
    "tenth": "the same two tools with other models, methods and losses, nothing changed after; six on two "
    "H200s",
    "eleventh": "FSDP2 on two H200s: Accelerate's nd_parallel.py, TRL's sft.py with all weights and with "
    "LoRA, without Triton, which warns; the measured peak is of the whole run, under the rehearsal's phase",
    "eleventh, corrected": "sft.py again with Triton, and nd_parallel.py with context parallelism as the "
    "rank that was measured",
}
"""Words of the lists of public scripts; those called corrected were rehearsed again."""
for _list, _words in _PUBLIC.items():
    _number = "".join(f"-{word}" for word in _list.removesuffix(", corrected").split())
    _again = "-again" if _list.endswith("corrected") else ""
    PEAKS[", ".join(filter(None, ("public", _list)))] = Peaks(
        f"rehearsed-public{_number}{_again}.jsonl", f"measured-public{_number}.jsonl", _words
    )


@dataclass(frozen=True)
class Case:
    """One script, rehearsed and measured. Errors are shares of what was measured. ``is_bound``: the peak was
    said to be "at least" so much."""

    name: str
    measured_bytes: int
    is_bound: bool
    peak_error: float
    reserved_error: float
    phases: dict[str, float]

    @property
    def worst_phase(self) -> str:
        """The phase that is furthest off."""
        return max(self.phases, key=lambda name: abs(self.phases[name]), default="")


def beside(said: dict[str, int], measured: dict[str, int]) -> dict[str, int]:
    """What was said of each measured phase. A run without a ``generate`` of its own (the sixth and the
    seventh list were measured so) has it in ``other``."""
    found = {phase: said.get(phase, 0) for phase in measured}
    if "generate" not in measured and "other" in measured:
        found["other"] = max(found["other"], said.get("generate", 0))
    return found


def cases(one: Peaks) -> list[Case]:
    """Those that ran to their end on the GPU and in their rehearsal."""
    predicted = {row["name"]: row for row in rows(DATA / one.predicted)}
    found = []
    for row in rows(DATA / one.measured):
        said = predicted.get(row["name"])
        if row.get("error") or said is None or said.get("complete") is False:
            continue
        bounds = said.get("lower_bounds", {})
        figures = beside(said["phases"], row["phases"])
        found.append(
            Case(
                name=row["name"],
                measured_bytes=row["peak_allocated_bytes"],
                is_bound=max(row["phases"], key=row["phases"].__getitem__) in bounds,
                peak_error=said["peak_allocated_bytes"] / row["peak_allocated_bytes"] - 1,
                reserved_error=said["peak_reserved_bytes"] / row["peak_reserved_bytes"] - 1,
                phases={
                    phase: figures[phase] / size - 1
                    for phase, size in row["phases"].items()
                    if size >= _SMALLEST_PHASE and phase not in bounds
                },
            )
        )
    return found


@dataclass(frozen=True)
class Times:
    """A list of scripts whose step times were predicted, then measured.

    Attributes:
        name: what follows ``script-times`` and ``predicted-step-times`` in the names of its files.
        words: what the list holds.
        slowest: whether ranks that wait for each other were counted as the slowest of them by then.
    """

    name: str
    words: str
    slowest: bool = False


TIMES = {
    "first": Times("", "TRL's scripts on H200s; the probe took one reading of some milliseconds"),
    "second": Times("-second", "TRL's scripts on H200s, the probe between their steps"),
    "third": Times("-third", "the same on another host, two GPUs among them"),
    "fourth": Times("-fourth", "some of these on a third host", slowest=True),
    "fifth": Times("-fifth", "models and settings that were never timed, on two hosts", slowest=True),
    "sixth": Times("-sixth", "others again, with offload and LoRA, on two H200s and an H100", slowest=True),
    "seventh": Times(
        "-seventh",
        "others again, each on two H100s, two of them pipelines; what it showed of ranks that wait on a busy "
        "host is counted since, in all lists with such ranks (its mean was 11.0 %, its worst +60.9 %)",
        slowest=True,
    ),
    "eighth": Times(
        "-eighth",
        "three models that were never timed, with packing, Liger, accumulation and offload, on two hosts of "
        "H200s; six on two GPUs",
        slowest=True,
    ),
    "ninth": Times("-ninth", "others again, each on four H200s", slowest=True),
}


@dataclass(frozen=True)
class Step:
    """A step that was predicted before it was measured."""

    name: str
    host: str
    gpus: int
    factor: float
    measured_seconds: float
    predicted_seconds: float

    @property
    def error(self) -> float:
        """As a share of what was measured."""
        return self.predicted_seconds / self.measured_seconds - 1


def steps(one: Times) -> list[Step]:
    """The rows of a list that have a prediction from before."""
    predicted = {
        (row["name"].removeprefix("times."), row.get("gpu", "h200")): row["seconds_by_host_factor"]
        for row in rows(PREDICTED / f"predicted-step-times{one.name}.jsonl")
    }
    found = []
    for row in rows(DATA / f"script-times{one.name}.jsonl"):
        title = row["versions"].get("gpu", "NVIDIA H200")
        gpu = "h100-sxm-80gb" if "H100" in title else "h200"
        by_factor = predicted.get((row["name"], gpu))
        if by_factor is None:
            continue
        factor = _factor(row, one)
        found.append(
            Step(
                name=row["name"],
                host=row.get("host", title.removeprefix("NVIDIA ").split()[0]),
                gpus=row["gpus"],
                factor=row["host_factor"],
                measured_seconds=row["step_seconds_median"],
                predicted_seconds=at_factor(factor, by_factor),
            )
        )
    return found


def _factor(row: dict[str, Any], one: Times) -> float:
    if not one.slowest:
        return float(row["host_factor"])
    low, high = row["host_factor_range"]
    speed = HostSpeed(factor=row["host_factor"], source="the row's probe", low=low, high=high)
    return of_slowest(speed, row["gpus"])


def at_factor(factor: float, by_factor: dict[str, float]) -> float:
    """Seconds at a host's factor, between the two that were written down around it."""
    points = sorted((float(key), value) for key, value in by_factor.items())
    for (lower, before), (upper, after) in itertools.pairwise(points):
        if lower <= factor <= upper:
            return before + (after - before) * (factor - lower) / (upper - lower)
    raise ValueError(f"no prediction was written down for a host of {factor}")


def percent(value: float) -> str:
    """A share with its sign; bytes that are equal, or nearly, as 0."""
    size = abs(value)
    if size < 5e-6:
        return "0"
    return f"{100 * value:+.{3 if size < 0.001 else 2 if size < 0.01 else 1}f} %"


def spread(errors: Iterable[float]) -> list[str]:
    """Median, 95th percentile and worst of the absolute errors."""
    values = sorted(map(abs, errors))
    sizes = (statistics.median(values), quantile(values, 0.95), values[-1])
    return [percent(size).removeprefix("+") for size in sizes]


def _table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    marks = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(map(str, line))} |" for line in [head, marks, *lines]]


def write_text() -> str:
    """The page."""
    memory = {name: cases(one) for name, one in PEAKS.items()}
    times = {name: steps(one) for name, one in TIMES.items()}
    parts = [_HEAD, *_memory(memory), "", _TIMES_HEAD, *_times(times), "", "## Every script", ""]
    parts += _every_case(memory)
    parts += ["", "## Every step", "", *_every_step(times), "", _FEW_HEAD, *_few_layers(), ""]
    return "\n".join(parts)


def _memory(memory: dict[str, list[Case]]) -> list[str]:
    head = (
        "list", "scripts", "peak: median", "95th percentile", "worst", "reserved: median", "95th percentile",
        "worst", "phases", "95th percentile", "worst",
    )  # fmt: skip
    lines = []
    for name, found in memory.items():
        phases = [error for case in found for error in case.phases.values()]
        exact = [case for case in found if not case.is_bound]
        lines.append(
            [name, len(exact), *spread(case.peak_error for case in exact),
             *spread(case.reserved_error for case in exact), len(phases), *spread(phases)[1:]]
        )  # fmt: skip
    listed = [
        f"- **{name}** (`{one.predicted}`, `{one.measured}`): {one.words}" for name, one in PEAKS.items()
    ]
    return [*_table(head, lines), "", *listed]


def _times(times: dict[str, list[Step]]) -> list[str]:
    head = ("list", "rows", "mean error", "worst", "rows within 10 %")
    lines = []
    for name, found in times.items():
        errors = [step.error for step in found]
        mean = statistics.mean(map(abs, errors))
        near = sum(abs(error) <= 0.1 for error in errors)
        lines.append([name, len(found), percent(mean).removeprefix("+"), percent(max(errors, key=abs)), near])
    listed = [f"- **{name}**: {one.words}" for name, one in TIMES.items()]
    return [*_table(head, lines), "", *listed]


def _every_case(memory: dict[str, list[Case]]) -> list[str]:
    head = ("script", "list", "measured peak, GiB", "peak", "reserved", "phase that is furthest off", "by")
    lines = [
        [f"`{case.name}`", name, f"{case.measured_bytes / GIB:.2f}",
         percent(case.peak_error) + (" (at least)" if case.is_bound else ""),
         percent(case.reserved_error), case.worst_phase, percent(case.phases.get(case.worst_phase, 0.0))]
        for name, found in memory.items()
        for case in found
    ]  # fmt: skip
    return _table(head, lines)


def _every_step(times: dict[str, list[Step]]) -> list[str]:
    head = ("script", "list", "on", "GPUs", "host", "measured, s", "predicted, s", "error")
    lines = [
        [f"`{step.name}`", name, step.host, step.gpus, f"{step.factor:.2f}", f"{step.measured_seconds:.3f}",
         f"{step.predicted_seconds:.3f}", percent(step.error)]
        for name, found in times.items()
        for step in found
    ]  # fmt: skip
    return _table(head, lines)


def _few_layers() -> list[str]:
    head = (
        "script",
        "layers",
        "phase that is furthest off",
        "by",
        "reserved",
        "step",
        "CPU, s",
        "all layers, s",
    )
    lines = []
    for row in rows(PREDICTED / "few-layers.jsonl"):
        off, step = dict(row["off"]), row["step_off"]
        reserved = percent(off.pop("reserved"))
        furthest = max(off, key=lambda name: abs(off[name]))
        lines.append(
            [f"`{row['name']}`", " and ".join(map(str, row["depth"]["layers"])), furthest,
             percent(off[furthest]), reserved, "" if step is None else percent(step), *row["cpu_seconds"]]
        )  # fmt: skip
    return _table(head, lines)


_HEAD = """\
# Rehearsals beside measured runs

What [`zerokit rehearse`](rehearsal.md) said of a script before it ran, beside what the run took on GPUs.
Written by `python -m benchmarks.rehearsal_page` from the committed rows: do not edit. Every prediction was
made before its run's figures were seen, but for the lists called corrected. What a list showed was corrected
before the next.

## Memory

Error is (predicted - measured) / measured, of PyTorch's peak allocated, of its peak reserved, and of the peak
of each phase above 1 MiB. Scripts that end in an error, on the GPU or in the rehearsal, have nothing to
compare; phases and peaks that were predicted as a lower bound ("at least") are left out of the sums.
"""
_FEW_HEAD = """\
## Few layers

Scripts of these lists with models of 28 layers (2,048 wide), of which a rehearsal ran a few, beside the same
with `--whole` (`python -m benchmarks.rehearsal_depth`, torch 2.13, transformers 5.23, TRL 1.16). Weights that
threads load come in another order each time, which is a block of the allocator more or less.
"""
_TIMES_HEAD = """\
## Step time

Error of the median step, at the speed of the host that a probe found between the run's own steps: 1 is the
reference host, less is faster. No other rate of the machine is used.
"""


def main() -> int:
    """Write the page, or compare it."""
    parser = options_of(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when the page would change")
    options = parser.parse_args()
    text = write_text()
    if options.check:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("the page is up to date" if same else f"would change: {PAGE.name}")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
