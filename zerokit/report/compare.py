"""Two runs side by side."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from zerokit.domain.phases import ALL
from zerokit.report import render, words
from zerokit.report.context import (
    UNKNOWN,
    RunContext,
    batch_size,
    engine_fact,
    facts,
    side_by_side,
    unlike_arguments,
    unlike_settings,
)
from zerokit.report.schema import Outcome, RunReport

SCHEMA = "zerokit.comparison/1"
_OLDER = {phase.name: phase.older for phase in ALL if phase.older}
_TOLD_OTHERWISE = frozenset(("arguments", "started"))
"""Rows of what ran: arguments are compared one by one, and two runs never start at the same time."""


def compare_reports(
    first: RunReport | Mapping[str, Any],
    second: RunReport | Mapping[str, Any],
    contexts: tuple[RunContext, RunContext] | None = None,
) -> dict[str, Any]:
    """The figures of two runs and their differences.

    Where the contexts differ, with both values: ``what_ran`` (script, model, strategy, batch, hardware),
    ``arguments`` of the script, and ``settings`` of DeepSpeed; null: not given, or not set.

    Sizes are the largest of any rank of each run, in bytes; step time is the median over ranks, in seconds.
    ``sequences_per_second`` is what each rank takes: batch size per GPU times gradient accumulation, over the
    step time. ``change_fraction`` is relative to the first run.
    """
    runs = [RunReport.model_validate(report) for report in (first, second)]
    phases = render.ordered_phases(
        dict.fromkeys(p for run in runs for rank in run.ranks for p in rank.phases)
    )
    alike = runs[0].on_gpu == runs[1].on_gpu  # a phase's GPU bytes and host bytes do not compare
    # older reports know fewer phases
    mixed = len({any("load" in rank.phases for rank in run.ranks) for run in runs}) > 1
    if mixed:
        phases = render.ordered_phases(dict.fromkeys(_OLDER.get(name, name) for name in phases))
    rows: dict[str, tuple[float | None, float | None]] = {
        name: (_most(runs[0], name), _most(runs[1], name)) for name in FIGURES if name.endswith("_bytes")
    }
    rows["step_seconds"] = (_step_seconds(runs[0]), _step_seconds(runs[1]))
    rows["sequences_per_second"] = (_sequences_per_second(runs[0]), _sequences_per_second(runs[1]))
    return {
        "schema": SCHEMA,
        "outcomes": [str(run.outcome) for run in runs],
        "ranks": [len(run.ranks) for run in runs],
        "steps": [max((rank.steps for rank in run.ranks), default=0) for run in runs],
        "batch": {
            "batch_size_per_gpu": [batch_size(run) for run in runs],
            "gradient_accumulation": [engine_fact(run, "gradient_accumulation") for run in runs],
            "global_batch": [_global_batch(run) for run in runs],
            "batch_columns": [engine_fact(run, "batch_columns") for run in runs],
        },
        "figures": {name: _change(*pair) for name, pair in rows.items()},
        **_unlike(runs, contexts),
        "phases": {
            name: _change(*(_phase(run, name, mixed) for run in runs)) for name in (phases if alike else ())
        },
    }


def _unlike(
    runs: Sequence[RunReport], contexts: tuple[RunContext, RunContext] | None
) -> dict[str, dict[str, list[Any]]]:
    """In what the runs are not alike, as far as their folders tell."""
    if contexts is None:
        return {"what_ran": {}, "arguments": {}, "settings": {}}
    ran = side_by_side(*(dict(facts(run, context)) for run, context in zip(runs, contexts, strict=True)))
    return {
        "what_ran": {
            name: _known(values)
            for name, *values in ran
            if name not in _TOLD_OTHERWISE and values[0] != values[1]
        },
        "arguments": {option: _known(values) for option, *values in unlike_arguments(*contexts)},
        "settings": {
            key: [
                None if value is None else json.loads(value, parse_constant=str) for value in _known(values)
            ]
            for key, *values in unlike_settings(*contexts)
        },
    }


def _known(values: Sequence[str]) -> list[str | None]:
    return [None if value == UNKNOWN else value for value in values]


def _most(run: RunReport, name: str) -> int | None:
    values = [value for rank in run.ranks if (value := getattr(rank, name)) is not None]
    return max(values, default=None)


def _phase(run: RunReport, name: str, mixed: bool) -> int | None:
    names = [name, *(part for part, of_phase in _OLDER.items() if mixed and of_phase == name)]
    return max((rank.phases[n] for rank in run.ranks for n in names if n in rank.phases), default=None)


def _step_seconds(run: RunReport) -> float | None:
    times = [rank.median_step_seconds for rank in run.ranks if rank.median_step_seconds]
    return statistics.median(times) if times else None


def _global_batch(run: RunReport) -> int | None:
    """Sequences of a step on all ranks; those that share a model's layers take the same ones."""
    rows, passes = batch_size(run), engine_fact(run, "gradient_accumulation")
    alike = engine_fact(run, "tensor_parallel") or 1
    return rows * passes * len(run.ranks) // alike if rows and passes else None


def _sequences_per_second(run: RunReport) -> float | None:
    seconds = _step_seconds(run)
    rows, passes = batch_size(run), engine_fact(run, "gradient_accumulation")
    return rows * passes / seconds if rows and passes and seconds else None


def _change(before: float | None, after: float | None) -> dict[str, Any]:
    has_both = before is not None and after is not None
    return {
        "first": before,
        "second": after,
        "change": after - before if before is not None and after is not None else None,
        "change_fraction": (after - before) / before if has_both and before and after is not None else None,
    }


BATCH = {
    "batch_size_per_gpu": "batch size per GPU",
    "gradient_accumulation": "gradient accumulation",
    "global_batch": "global batch",
    "batch_columns": "tokens per sequence (largest batch)",
}
FIGURES = {
    "peak_allocated_bytes": "allocated",
    "peak_reserved_bytes": "reserved",
    "peak_device_used_bytes": "device used",
    "peak_host_rss_bytes": "host memory",
    "step_seconds": "step time",
    "sequences_per_second": "sequences/s per GPU",
}
_HEADLINES = {"peak_allocated_bytes": "peak allocated"}


def headline(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures that say most, and how each changed. Steps of unlike batches compare by their sequences."""
    keys = ["step_seconds", "sequences_per_second", "peak_allocated_bytes", "peak_host_rss_bytes"]
    before, after = comparison["batch"]["global_batch"]
    note = ""
    if before and after and before != after:
        keys[:2] = ["sequences_per_second", "step_seconds"]
        note = f" (a step of {after:,} sequences against {before:,})"
    changes = [(key, comparison["figures"][key]["change_fraction"]) for key in keys]
    return [
        (
            _HEADLINES.get(key, FIGURES[key]),
            words.percent(change) + (note if key == "step_seconds" else ""),
        )
        for key, change in changes
        if change is not None
    ][:3]


def table_rows(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What both runs were and did, without the phases: name, first, second, change."""
    rows: list[tuple[str, ...]] = [
        ("outcome", *(Outcome(value).words for value in comparison["outcomes"]), ""),
        *((key, *map(str, comparison[key]), "") for key in ("ranks", "steps")),
    ]
    for key, name in BATCH.items():
        values = comparison["batch"][key]
        if any(value is not None for value in values):
            rows.append((name, *("–" if value is None else f"{value:,}" for value in values), ""))
    for key, pair in comparison["figures"].items():
        values = [pair["first"], pair["second"]]
        if any(value is not None for value in values):
            change = words.percent(pair["change_fraction"])
            rows.append((FIGURES[key], *(_shown(key, value) for value in values), change))
    return rows


def _shown(key: str, value: float | None) -> str:
    if key == "sequences_per_second":
        return "–" if value is None else f"{value:,.3g}"
    return words.seconds(value) if key == "step_seconds" else words.size(value)


def print_comparison(comparison: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Print a comparison to standard output."""
    sized = [
        (
            f"  {key}",
            *map(words.size, (pair["first"], pair["second"])),
            words.percent(pair["change_fraction"]),
        )
        for key, pair in comparison["phases"].items()
    ]
    console = render.wide_console()
    table = render.new_table()
    table.add_column("largest of any rank, median step time")
    for name in (*names, "change"):
        table.add_column(escape(name), justify="right")
    for row in (*table_rows(comparison), *sized):
        table.add_row(*map(escape, row))
    console.print(table, highlight=False)
    differing = [
        (what, *(UNKNOWN if value is None else shown(value) for value in values))
        for kind, shown in (("what_ran", _given), ("arguments", _given), ("settings", json.dumps))
        for what, values in comparison[kind].items()
    ]
    if differing:
        table = render.new_table()
        for name in ("what differs", *names):
            table.add_column(escape(name), overflow="fold")
        for row in differing:
            table.add_row(*map(escape, row))
        console.print(table, highlight=False)


def _given(value: str) -> str:
    return value or "given"
