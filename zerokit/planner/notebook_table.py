"""A small table of HTML, for the notebook that shows a result."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LEFT = ' style="text-align:left"'


def html_table(caption: str, rows: Sequence[Sequence[str]], *, titles: Sequence[str] = ()) -> str:
    """Rows of text; the first of each is its head. ``titles``: of the columns."""
    head = "".join(f'<th{_LEFT} scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(f"<tr>{_head(row[0])}{''.join(map(_cell, row[1:]))}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _head(text: str) -> str:
    return f"<th{_LEFT}>{escape(text)}</th>"


def _cell(text: str) -> str:
    return f"<td{_LEFT}>{escape(text)}</td>"
