"""A rehearsal as one self-contained HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit import __version__
from zerokit.rehearsal.result import RankMemory, Rehearsal
from zerokit.rehearsal.sections import Section, live_in_sum, sections
from zerokit.report import charts
from zerokit.report.context import made_at, model_words, read_context, script_and_model
from zerokit.report.html import fill
from zerokit.report.schema import plain
from zerokit.units import format_gib, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalPage:
    """What a page says beside its rehearsal.

    Attributes:
        command: the words that were typed, secrets masked; empty where there were none.
        plan: the folder of the plan that the script got, or its plan.yaml; None: there was none.
        written_at: Unix seconds.
    """

    script: str
    command: Sequence[str] = ()
    plan: str | None = None
    program: str = "zerokit"
    written_at: float


def render_html(done: Rehearsal, page: RehearsalPage) -> str:
    """The page. It holds its own style, runs no script and loads nothing; every text is escaped."""
    request: Mapping[str, Any] = {}
    if page.plan:
        path = Path(page.plan)
        request = read_context(path if path.is_dir() else path.parent).part("request")
    model = plain(_model(done, request))
    return fill(
        "rehearsal.html.j2",
        done=done,
        script=page.script,
        model=model,
        subject=f"{plain(script_and_model(page.script, model))} on {done.gpus} × {done.gpu}",
        facts=_facts(done, page, model, str(plain(request.get("method", "")))),
        answer=_answer(done),
        sections=drawn(
            (*sections(done), *(one for rank in done.ranks for one in live_in_sum(rank, f"rank {rank.rank}")))
        ),
    )


def drawn(told: Iterable[Section], of: str = "rank") -> list[tuple[Section, str, Any]]:
    """Sections as a page takes them: with a title, and a chart where they have peaks by phase."""
    return [
        (one, one.title[:1].upper() + one.title[1:], _phases(one.rank, of) if one.rank is not None else None)
        for one in told
    ]


def _facts(done: Rehearsal, page: RehearsalPage, model: str, method: str) -> list[tuple[str, str]]:
    rows = [
        ("script", page.script),
        ("command", shlex.join((page.program, *page.command)) if page.command else ""),
        ("model", model),
        ("method", str((done.model or {}).get("method") or method)),
        ("plan", page.plan or ""),
        ("made", made_at(page.written_at)),
        ("zerokit", __version__),
        *done.versions.items(),
    ]
    return [(name, str(plain(value))) for name, value in rows if value]


def _model(done: Rehearsal, request: Mapping[str, Any]) -> str:
    """The trained model: the plan's name for it, else its own or its class's, and how large it is."""
    config = (done.model or {}).get("config") or {}
    named = (
        request.get("model")
        or config.get("_name_or_path")
        or next(iter(config.get("architectures") or ()), "")
    )
    return model_words({**request, "model": named}, done.engine or {})


def _phases(rank: RankMemory, of: str) -> Any:
    """The chart of the peaks of a rank, or of what else ``of`` names; None: there are none."""
    bars = [
        charts.Bar(
            label=name, parts=[("peak allocated", size, "c0")],
            note="the peak" if name == rank.peak_phase else "",
        )
        for name, size in rank.phases.items()
    ]  # fmt: skip
    return charts.bars(f"Peak by phase, {of} {rank.rank}: GPU memory allocated", bars) if bars else None


def _answer(done: Rehearsal) -> list[str]:
    """What a reader wants first: whether it fits, the peak and where, the time of a step."""
    fed = f"Fed: {done.fed.text}" if done.fed is not None else ""
    lines = [*map(_sentence, filter(None, (fed, *done.of_feed, done.verdict, done.trained_by)))]
    if done.ranks and any(rank.phases for rank in done.ranks):
        rank = max(done.ranks, key=lambda rank: rank.peak_allocated_bytes)
        lines.append(
            f"Peak allocated {format_gib(rank.peak_allocated_bytes)} in {rank.peak_phase}, rank {rank.rank}"
        )
    if done.step_seconds is not None:
        lines.append(f"Step: {format_seconds(done.step_seconds)}")
    return lines


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}" + ("" if not words or words.endswith((".", "?")) else ".")
