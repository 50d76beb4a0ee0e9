"""A run's report, and two runs side by side, as one self-contained HTML page."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.domain.phases import ALL
from zerokit.errors import ReportNotWritten
from zerokit.files import write_whole
from zerokit.messages import visible
from zerokit.report import charts, render, run_charts, words
from zerokit.report.compare import compare_reports, headline, table_rows
from zerokit.report.context import (
    RunContext,
    facts,
    read_context,
    side_by_side,
    subject,
    unlike_settings,
)
from zerokit.report.run_charts import left_over
from zerokit.report.schema import RankReport, RunReport
from zerokit.resources import folder
from zerokit.units import format_gib, told_apart

GOOD = ("ok", "stopped", "running")
_STACKS = f"What each rank was doing, as Python stacks: {render.STACKS} in the run's folder"
_ROOMY = 0.25  # of the card: a run that leaves more than this may be made faster


def answer(run: RunReport) -> list[str]:
    """The lines of the box at the head of the page."""
    lines = [run.outcome.text if run.outcome in GOOD or not run.why else run.outcome.because(run.why)]
    rank = run_charts.shown_rank(run)
    failure = run.first_failure
    if failure is not None and failure.oom is not None:
        place, _, moment = words.failure_place(failure).partition(", ")
        memory = "GPU" if failure.oom.memory == "gpu" else "host"
        lines += [f"{place} ran out of {memory} memory {moment}".strip(), *words.sizes(failure)]
    else:
        lines += [*([_how_full(run, rank)] if rank is not None else []), *_predicted(run)]
    lines += [*_what_to_do(run, rank), *render.snapshot_lines(run), *([run.resume] if run.resume else [])]
    return [line[:1].upper() + line[1:] for line in lines]


def _how_full(run: RunReport, rank: RankReport) -> str:
    peak = format_gib(render.measured(rank) or 0, 1)
    if not run.gpu_measured:
        return f"Host memory of the fullest rank ({rank.rank}): {peak}"
    total, used = rank.device_total_bytes, rank.peak_device_used_bytes
    if not total or not used:
        return f"Peak allocated {peak}, rank {rank.rank}"
    return (
        f"Peak allocated {peak}; the device had {format_gib(used, 1)} of {format_gib(total, 1)} in use, "
        f"{format_gib(total - used, 1)} headroom (rank {rank.rank})"
    )


def _predicted(run: RunReport) -> list[str]:
    predicted = run.predicted_vs_measured
    pair = predicted.peak_bytes if predicted else None
    if predicted is None or pair is None or not pair.predicted or not pair.measured:
        return []
    off = f", {words.percent(pair.error_fraction)}" if pair.error_fraction is not None else ""
    return ["Predicted peak {}, measured {}".format(*told_apart(pair.predicted, pair.measured)) + off]


def _what_to_do(run: RunReport, rank: RankReport | None) -> list[str]:
    if run.hang is not None:
        return [f"Likely cause: {run.hang.what}", f"Fix: {run.hang.fix}", _STACKS]
    if run.outcome == "hung":
        return [_STACKS]
    failure = run.first_failure
    if failure is not None:
        ways = failure.try_next[:2] if failure.next_plan is None else []
        return [*(f"{words.TO_NEED_LESS}: {text}" for text in ways), *words.next_plan(failure)]
    if any(rank.alloc_retries for rank in run.ranks):
        return ["The allocator ran full and retried: a little less memory would make the steps faster"]
    if rank is None or not (run.gpu_measured and rank.device_total_bytes and rank.peak_device_used_bytes):
        return []
    free = rank.device_total_bytes - rank.peak_device_used_bytes
    if free <= _ROOMY * rank.device_total_bytes:
        return []
    return [f"{format_gib(free, 1)} were never used: a larger batch per GPU, or less sharding, may be faster"]


def render_html(report: RunReport | Mapping[str, Any], context: RunContext | None = None) -> str:
    """The page: its own style, no script, nothing loaded, every text escaped. ``context``: the run's plan and
    command, where its folder is at hand."""
    run = RunReport.model_validate(report)
    context = context or RunContext()
    rows, (ranks, omitted) = facts(run, context), render.shown_ranks(run)
    return fill(
        "report.html.j2",
        run=run,
        shown=run_charts.shown_rank(run),
        subject=subject(run, context),
        good=run.outcome in GOOD,
        answer=answer(run),
        facts=rows,
        ran=" · ".join(value for name, value in rows if name in ("model", "method", "strategy", "batch")),
        phases=render.ordered_phases(dict.fromkeys(name for rank in run.ranks for name in rank.phases)),
        ranks=[_row(run, rank) for rank in ranks],
        omitted=omitted,
        context=context,
        charts=run_charts,
        render=render,
        words=words,
    )


def render_comparison(
    runs: tuple[RunReport, RunReport], names: tuple[str, str], contexts: tuple[RunContext, RunContext]
) -> str:
    """The page of two runs side by side."""
    compared = compare_reports(*runs)
    bars = [
        charts.Bar(label=phase if first else "", parts=[(name, pair[run_name], style)])
        for phase, pair in compared["phases"].items()
        for first, name, run_name, style in (
            (True, names[0], "first", "c0"),
            (False, names[1], "second", "m0"),
        )
        if pair[run_name]
    ]
    alike = runs[0].gpu_measured == runs[1].gpu_measured
    scale = max(map(run_charts.highest, runs)) if alike else 0.0
    memory_charts = [
        (name, run_charts.memory_over_time(run, scale=scale)) for name, run in zip(names, runs, strict=True)
    ]
    return fill(
        "comparison.html.j2",
        names=names,
        subject=" and ".join(dict.fromkeys(map(subject, runs, contexts))),
        answer=[f"{names[1]} against {names[0]}: {what} {change}" for what, change in headline(compared)]
        or ["The runs have no figure in common"],
        rows=table_rows(compared),
        bars=charts.bars("Peak memory by phase", bars) if bars else None,
        charts=[(name, chart) for name, chart in memory_charts if chart is not None],
        what_ran=side_by_side(
            *(dict(facts(run, context)) for run, context in zip(runs, contexts, strict=True))
        ),
        settings=unlike_settings(*contexts),
    )


@functools.cache
def _templates() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def fill(name: str, **values: Any) -> str:
    """A page out of one of the package's templates; everything put into it is escaped and visible."""
    page = _templates().get_template(name)
    return visible(page.render(no_charts=charts.missing(), run_phases=ALL, **values))


def _row(run: RunReport, rank: RankReport) -> dict[str, Any]:
    # how much of what the allocator reserved at most was not allocated at most
    left = left_over(rank.peak_allocated_bytes, rank.peak_reserved_bytes)
    kept = "–" if left is None else f"{left[1]:.0%}".replace("%", " %")
    cells = render.rank_cells(run, rank) | {"reserved, left over": kept}
    return {"rank": rank, "cells": cells, "phases": {n: words.size(size) for n, size in rank.phases.items()}}


def write_html(path: Path, report: RunReport | Mapping[str, Any], run_dir: Path | None = None) -> None:
    """Write the page of a run to ``path``, whole or not at all. ``run_dir``: where its plan lies. Raises
    ReportNotWritten: as :func:`write_page`."""
    write_page(path, render_html(report, read_context(run_dir) if run_dir is not None else None))


def write_page(path: Path, text: str) -> None:
    """Write a page to ``path``, whole or not at all; its folder is made. Raises ReportNotWritten: the folder
    cannot be written, or the disk is full."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise ReportNotWritten(f"{path} could not be written: {error.strerror or error}") from error
