"""A run's report as one self-contained HTML page."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.errors import ReportNotWritten
from zerokit.files import write_whole
from zerokit.report import render
from zerokit.report.schema import RankReport, RunReport
from zerokit.report.timeline import timeline_svg
from zerokit.resources import folder

_TEMPLATE = "report.html.j2"


def render_html(report: RunReport | Mapping[str, Any]) -> str:
    """The page. It holds its own style, runs no script and loads nothing; every text is escaped."""
    run = RunReport.model_validate(report)
    ranks, omitted = render.shown_ranks(run)
    page: str = _template().render(
        run=run,
        outcome_text=run.outcome.text,
        ranks=[_row(run, rank) for rank in ranks],
        omitted=omitted,
        phases=render.ordered_phases(dict.fromkeys(name for rank in run.ranks for name in rank.phases)),
        predicted=run.predicted_vs_measured,
        predicted_rows=render.predicted_rows(run.predicted_vs_measured) if run.predicted_vs_measured else [],
        differences=render.difference_lines(run.predicted_vs_measured) if run.predicted_vs_measured else [],
        warnings=render.warnings(run),
        retries=render.retry_lines(run),
        failure=run.first_failure,
        failure_place=render.failure_place(run.first_failure) if run.first_failure else "",
        failure_lines=render.failure_lines(run.first_failure) if run.first_failure else [],
        elapsed=render.seconds(run.elapsed_seconds),
        chart=timeline_svg(run),
    )
    return page


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE)


def _row(run: RunReport, rank: RankReport) -> dict[str, Any]:
    size = render.size
    memory = [size(run.expected_bytes.get(rank.rank))]
    if run.on_gpu:
        memory += [render.gpu_size(rank, rank.peak_allocated_bytes),
                   render.gpu_size(rank, rank.peak_reserved_bytes),
                   size(rank.peak_device_used_bytes),
                   "–" if rank.alloc_retries is None else str(rank.alloc_retries)]  # fmt: skip
    memory.append(size(rank.peak_host_rss_bytes or None))
    return {
        "rank": rank,
        "signal": render.signal_name(rank.signal),
        "memory": memory,
        "step_time": render.seconds(rank.median_step_seconds),
        "phases": {name: size(value) for name, value in rank.phases.items()},
    }


def write_html(path: Path, report: RunReport | Mapping[str, Any]) -> None:
    """Write the page to ``path``, whole or not at all.

    Raises:
        ReportNotWritten: the folder is missing, cannot be written, or the disk is full.
    """
    text = render_html(report)
    try:
        write_whole(path, text, through_links=True)
    except OSError as error:
        raise ReportNotWritten(f"{path} could not be written: {error.strerror or error}") from error
