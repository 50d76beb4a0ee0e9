"""An explanation as one self-contained HTML page."""

from __future__ import annotations

from zerokit.rehearsal.html import drawn
from zerokit.rehearsal.sections import live_in_sum
from zerokit.report.context import made_at
from zerokit.report.html import fill
from zerokit.report.schema import plain
from zerokit.snapshots.explanation import Explanation
from zerokit.snapshots.sections import answer, sections


def render_html(told: Explanation, written_at: float) -> str:
    """Render the page, which runs no script and loads nothing; every text is escaped. ``written_at``: Unix
    seconds."""
    summed = (
        one for device in told.devices for one in live_in_sum(device.memory, f"GPU {device.memory.rank}")
    )
    return fill(
        "explanation.html.j2",
        path=plain(told.path),
        answer=[line[:1].upper() + line[1:] for line in answer(told)],
        notes=told.notes,
        sections=drawn((*sections(told), *summed), "GPU"),
        made=made_at(written_at),
    )
