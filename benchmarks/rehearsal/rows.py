"""Measured runs of scripts, each in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import rows

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "h200"

Phases = dict[str, int]
COPIES = {"DeepSpeedExamples: ": "--deepspeed-examples", "Transformers: ": "--transformers"}
"""How a row names a script of a repository that is no package, and the option that says where its copy is."""
OWN = "zerokit: "
"""How a row names a script of this repository."""


def script_path(script: str, copies: Mapping[str, Path | None]) -> Path:
    """Where a row's script is: in this repository, in another one's copy, or in TRL's package. ``copies``:
    the repositories' folders, by their option in :data:`COPIES`. Raises FileNotFoundError: it is in a
    repository of which no copy is given."""
    if script.startswith(OWN):
        return ROOT / script.removeprefix(OWN)
    for prefix, option in COPIES.items():
        if script.startswith(prefix):
            folder = copies.get(option)
            if folder is None:
                raise FileNotFoundError(f"{script}: give {option} FOLDER")
            return folder / script.removeprefix(prefix)
    import trl

    return Path(trl.__file__).parent.parent / script


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row. Bytes; ``kind``: ``raw``, ``plan`` (launched with one), ``file`` (its own DeepSpeed file).

    Phases and peaks are rank 0's, which is the rank that is rehearsed; ``peaks_of_ranks`` and
    ``reserved_of_ranks`` are those of every rank.
    """

    name: str
    kind: str
    script: str
    arguments: tuple[str, ...]
    gpus: int
    model: dict[str, Any]
    deepspeed_config: dict[str, Any]
    deepspeed_option: str
    strategy: dict[str, Any]
    phases: Phases
    peak_bytes: int
    reserved_bytes: int
    peaks_of_ranks: tuple[int, ...]
    reserved_of_ranks: tuple[int, ...]
    row: dict[str, Any]


def _lines(path: Path) -> list[dict[str, Any]]:
    return rows(path)


def raw_runs(path: Path = DATA / "h200-deepspeed.jsonl") -> list[MeasuredRun]:
    """Loops that measured themselves; their last step's phases."""
    runs = []
    for row in _lines(path):
        if not row.get("ok", True):
            continue
        last = row["last_step_rank0"]
        phases = {
            "init": row["after_init_rank0"]["max_alloc"],
            "forward": last["fwd"]["max_alloc"],
            "backward": last["bwd"]["max_alloc"],
            "step": last["step"]["max_alloc"],
        }
        runs.append(
            MeasuredRun(
                name=row["id"],
                kind="raw",
                script="raw_loop.py",
                arguments=(),
                gpus=row["world_size"],
                model=row["hf_config"],
                deepspeed_config=row["deepspeed_config"],
                deepspeed_option="",
                strategy={},
                phases=phases,
                peak_bytes=row["peak_allocated_bytes"][0],
                reserved_bytes=row["peak_reserved_bytes"][0],
                peaks_of_ranks=tuple(row["peak_allocated_bytes"]),
                reserved_of_ranks=tuple(row["peak_reserved_bytes"]),
                row=row,
            )
        )
    return runs


def planned_runs(path: Path = DATA / "h200-trl-scripts.jsonl") -> list[MeasuredRun]:
    """TRL's scripts, launched with a plan."""
    runs = []
    for row in _lines(path):
        rank = row["ranks"][0]
        runs.append(
            MeasuredRun(
                name=row["name"],
                kind="plan",
                script="trl/scripts/" + row["script"],
                arguments=tuple(row["args"]),
                gpus=row["gpus"],
                model=row["model"],
                deepspeed_config={},
                deepspeed_option="",
                strategy=row["strategy"],
                phases={k: v for k, v in rank["phases"].items() if v},
                peak_bytes=rank["peak_allocated_bytes"],
                reserved_bytes=rank["peak_reserved_bytes"],
                peaks_of_ranks=tuple(other["peak_allocated_bytes"] for other in row["ranks"]),
                reserved_of_ranks=tuple(other["peak_reserved_bytes"] for other in row["ranks"]),
                row=row,
            )
        )
    return runs


def timed_runs(path: Path = DATA / "h200-script-times.jsonl") -> list[MeasuredRun]:
    """Public scripts with a DeepSpeed file of their own, without zerokit."""
    return [
        MeasuredRun(
            name="times." + row["name"],
            kind="file",
            script=row["script"],
            arguments=tuple(row["args"]),
            gpus=row["gpus"],
            model=row["model"],
            deepspeed_config=row["deepspeed_config"],
            deepspeed_option=row["deepspeed_option"],
            strategy={},
            phases=row["phases"],
            peak_bytes=row["peak_allocated_bytes"],
            reserved_bytes=row["peak_reserved_bytes"],
            peaks_of_ranks=(row["peak_allocated_bytes"],),
            reserved_of_ranks=(row["peak_reserved_bytes"],),
            row=row,
        )
        for row in _lines(path)
    ]


GROUPS = {
    "init": ("load", "init"),
    "forward": ("forward",),
    "backward": ("backward",),
    "step": ("step",),
    "rest": ("eval", "generate", "save", "other"),
}
"""Phases that are compared together: the measured ones know no load, generate and save."""


def grouped(phases: Phases) -> Phases:
    """The largest of each group."""
    return {
        group: max(phases[name] for name in names if name in phases)
        for group, names in GROUPS.items()
        if any(name in phases for name in names)
    }


def beside_nearest(found: int, measured: tuple[int, ...]) -> float:
    """By how much a figure is off from the rank that comes nearest, in per cent."""
    return min((100 * (found / size - 1) for size in measured), key=abs)


def compared(run: MeasuredRun, phases: Phases) -> dict[str, tuple[int, int]]:
    """Measured bytes and the difference of the rehearsed ones, by group.

    Rows of kind ``file`` put the loss, the time between the backward and the step, and engines after the
    first one under ``other``; a rehearsal has them under ``forward``, ``backward`` and ``init``. There a
    phase may lie anywhere from its measured peak up to that of ``other``.
    """
    measured, found = grouped(run.phases), grouped(phases)
    outside = run.phases.get("other", 0) if run.kind == "file" else 0
    if run.kind == "file":
        del measured["rest"]
        found["forward"] = max(found["forward"], phases.get("eval", 0))
    differences = {}
    for group, size in measured.items():
        nearest = min(max(found.get(group, 0), size), max(size, outside))
        differences[group] = (size, found.get(group, 0) - nearest)
    return differences
