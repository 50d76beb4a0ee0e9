"""A rehearsal as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerokit.errors import ReportNotWritten
from zerokit.files import write_whole
from zerokit.rehearsal.result import HeldAtPeak, RankMemory, Rehearsal
from zerokit.resources import folder
from zerokit.units import format_gib, format_seconds

_TEMPLATE = "rehearsal.html.j2"


def render_html(done: Rehearsal, script: str) -> str:
    """The page. It holds its own style, runs no script and loads nothing; every text is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["gib"] = format_gib
    environment.filters["seconds"] = format_seconds
    page: str = environment.get_template(_TEMPLATE).render(
        done=done,
        script=script,
        ranks=[_rank(rank) for rank in done.ranks],
        verdict=_verdict(done),
    )
    return page


def write_html(path: Path, done: Rehearsal, script: str) -> None:
    """Write the page.

    Raises:
        ReportNotWritten: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render_html(done, script))
    except OSError as error:
        raise ReportNotWritten(f"{path}: cannot be written: {error.strerror}") from None


def _rank(rank: RankMemory) -> dict[str, Any]:
    most = max(rank.phases.values(), default=0) or 1
    return {
        "memory": rank,
        "phases": [(name, size, 100 * size / most) for name, size in rank.phases.items()],
        "by_module": summed(rank.at_peak, lambda row: row.module or "outside of modules"),
        "by_line": summed(rank.at_peak, lambda row: row.location or "smaller than 1 MiB each"),
    }


def summed(rows: tuple[HeldAtPeak, ...], key: Callable[[HeldAtPeak], str]) -> list[tuple[str, int]]:
    """Bytes live at the peak by module, or by line; the largest first."""
    totals: dict[str, int] = {}
    for row in rows:
        totals[key(row)] = totals.get(key(row), 0) + row.bytes
    return sorted(totals.items(), key=lambda item: -item[1])


def _verdict(done: Rehearsal) -> str:
    if done.stopped is not None:
        return f"Incomplete: stopped at {done.stopped.location}: {done.stopped.reason}"
    if done.min_vram_bytes is None:
        return "Nothing was allocated on the GPU."
    required = format_gib(done.min_vram_bytes)
    if done.fits is None and done.lower_bound:
        return f"Not known whether it fits on {done.gpu}: at least {required} is required (see the phases)."
    if done.lower_bound:
        required = f"at least {required}"
    if done.fits is None:
        return f"A GPU of {required} is required."
    return f"{'Fits' if done.fits else 'Does not fit'}: {required} required on {done.gpu}."
