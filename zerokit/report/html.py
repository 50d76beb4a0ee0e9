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
from zerokit.report import charts, failure_text, figure_text, render, run_charts, run_events
from zerokit.report.allocator_chart import allocator, left_over
from zerokit.report.compare import compare_reports, headline, table_rows
from zerokit.report.context import (
    RunContext,
    facts,
    read_context,
    side_by_side,
    subject,
    unlike_settings,
)
from zerokit.report.prediction_text import difference_lines
from zerokit.report.run_answer import GOOD, answer
from zerokit.report.schema import RankReport, RunReport
from zerokit.resources import folder


def render_html(report: RunReport | Mapping[str, Any], context: RunContext | None = None) -> str:
    """The page. It holds its own style, runs no script and loads nothing; every text is escaped.

    ``context``: the plan and command of the run, where its folder is at hand.
    """
    run = RunReport.model_validate(report)
    context = context or RunContext()
    ranks, omitted = render.shown_ranks(run)
    predicted, failure = run.predicted_vs_measured, run.first_failure
    shown = run_charts.shown_rank(run)
    return fill(
        "report.html.j2",
        run=run,
        subject=subject(run, context),
        good=run.outcome in GOOD,
        outcome_text=run.outcome.text,
        answer=answer(run),
        facts=facts(run, context),
        ranks=[_row(run, rank) for rank in ranks],
        peak_column=render.peak_column(run),
        omitted=omitted,
        phases=render.ordered_phases(dict.fromkeys(name for rank in run.ranks for name in rank.phases)),
        predicted=predicted,
        predicted_rows=render.predicted_rows(predicted) if predicted else [],
        differences=difference_lines(predicted) if predicted else [],
        warnings=render.warnings(run),
        retries=render.retry_lines(run),
        failure=failure,
        failure_place=failure_text.failure_place(failure) if failure else "",
        failure_lines=failure_text.failure_lines(failure) if failure else [],
        elapsed=figure_text.seconds(run.elapsed_seconds),
        chart=run_charts.memory_over_time(run),
        components=run_charts.components(run),
        allocator=allocator(run, shown) if shown is not None else None,
        predicted_over_time=run_charts.predicted_over_time(run),
        small=run_charts.ranks_side_by_side(run),
        phase_bars=run_charts.phases(run),
        step_time=run_charts.step_time(run, context.time_parts),
        events=run_events.table(run, shown),
        settings=context.settings,
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


def fill(name: str, **values: Any) -> str:
    """A page out of one of the package's templates; everything put into it is escaped and visible."""
    return visible(_template(name).render(no_charts=charts.missing(), run_phases=ALL, **values))


@functools.cache
def _template(name: str) -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _row(run: RunReport, rank: RankReport) -> dict[str, Any]:
    size = figure_text.size
    memory = [size(run.expected_bytes.get(rank.rank))]
    if run.on_gpu:
        memory += [render.gpu_size(rank, rank.peak_allocated_bytes),
                   render.gpu_size(rank, rank.peak_reserved_bytes),
                   _left_over(rank),
                   size(rank.peak_device_used_bytes),
                   "–" if rank.alloc_retries is None else str(rank.alloc_retries)]  # fmt: skip
    memory.append(size(rank.peak_host_rss_bytes or None))
    return {
        "rank": rank,
        "signal": figure_text.signal_name(rank.signal),
        "memory": memory,
        "step_time": figure_text.seconds(rank.median_step_seconds),
        "phases": {name: size(value) for name, value in rank.phases.items()},
    }


def _left_over(rank: RankReport) -> str:
    """``4 %``: of what the allocator reserved at most, what was not allocated at most."""
    left = left_over(rank.peak_allocated_bytes, rank.peak_reserved_bytes)
    return "–" if left is None else f"{left[1]:.0%}".replace("%", " %")


def write_html(path: Path, report: RunReport | Mapping[str, Any], run_dir: Path | None = None) -> None:
    """Write the page of a run to ``path``, whole or not at all. ``run_dir``: where its plan lies.

    Raises:
        ReportNotWritten: the folder is missing, cannot be written, or the disk is full.
    """
    write_page(path, render_html(report, read_context(run_dir) if run_dir is not None else None))


def write_page(path: Path, text: str) -> None:
    """Write a page to ``path``, whole or not at all.

    Raises:
        ReportNotWritten: the folder is missing, cannot be written, or the disk is full.
    """
    try:
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise ReportNotWritten(f"{path} could not be written: {error.strerror or error}") from error
