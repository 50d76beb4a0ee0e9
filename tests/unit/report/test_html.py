"""The page of a run: self-contained, escaped, readable with many ranks."""

from __future__ import annotations

import html.parser
import json
from typing import Any

from tests.support.report_pages import CONTEXT, GIB, OOM, out_of_memory, report
from tests.support.report_pages import report as drawn
from tests.support.run_reports import ERROR, report_of, shown, write_rank
from zerokit.launcher.rank_file import rank_file
from zerokit.report import run_charts
from zerokit.report.context import facts
from zerokit.report.html import answer, render_html
from zerokit.report.schema import RunReport


class Page(html.parser.HTMLParser):
    """Collects tags, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_escapes_everything(tmp_path):
    evil = "<script>alert(1)</script>\x1b]0;x\x07\"'&"
    write_rank(
        tmp_path,
        0,
        extra=[{**ERROR, "rank": 0, "pid": 100, "traceback": evil, "error": evil}],
        state="failed",
        exit_code=1,
        phase=evil,
    )
    text = (
        rank_file(tmp_path, 0)
        .read_text()
        .replace("node-0", "<img src=x onerror=y>")
        .replace("train.py", "<b>")
    )
    rank_file(tmp_path, 0).write_text(text)
    report = report_of(tmp_path, 1)
    page = Page()
    source = render_html(report)
    page.feed(source)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "b", "base", "form"}
    assert {"svg", "path", "table", "pre"} <= names
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "href", "onerror", "onload", "xlink:href", "action"}
    assert "http" not in source.replace("http-equiv", "")
    assert "&lt;script&gt;alert(1)" in source and "\x1b" not in source and "\x1b" not in shown(report)
    assert "prefers-color-scheme: dark" in source


def test_the_top_names_model_strategy_and_batch() -> None:
    page = render_html(drawn(2), CONTEXT)
    top = " ".join(page[page.index("<h1>") : page.index("<h2>")].split())
    for name, value in facts(RunReport.model_validate(drawn(2)), CONTEXT):
        assert (value in top) or name not in ("model", "strategy", "batch"), name
    assert "llama-3.1-8b" in top and " accumulation" in top


def test_the_peak_of_a_cpu_rank_has_the_terminals_heading(tmp_path):
    """A process keeps what its tensors free: "in" would be of a GPU."""
    for name, on_gpu, heading in (("gpu", True, "peak in"), ("cpu", False, "peak from")):
        (tmp_path / name).mkdir()
        write_rank(tmp_path / name, 0, on_gpu=on_gpu)
        report = report_of(tmp_path / name, 1, plan=None)
        assert f'scope="col">{heading}</th>' in render_html(report)
        assert heading in " ".join(shown(report).split())


def test_many_ranks_stay_readable(tmp_path):
    for number in range(100):
        bad = number == 77
        write_rank(tmp_path, number, state="failed" if bad else "finished", exit_code=int(bad))
    report = report_of(tmp_path, 100, plan=None)
    text = shown(report)
    assert len(text.splitlines()) < 100
    assert "36 more finished ranks in report.json" in text
    assert "failed" in text
    assert len(render_html(report)) < 200_000
    assert len(json.dumps(report)) < 1_000_000


def with_failure(**changes: Any) -> RunReport:
    body = out_of_memory().to_dict()
    body["first_failure"] |= changes
    return RunReport.model_validate(body)


def test_the_rank_that_ran_out_is_named_with_how_full_its_card_was() -> None:
    assert answer(out_of_memory()) == [
        "Out of memory",
        "Rank 3 on node-0 ran out of GPU memory in backward of step 61",
        "Asked for 4.00 GiB; 1.40 GiB of 80.00 GiB were free on the device",
        "Allocated 74.00 GiB, reserved 76.00 GiB, of that fragmentation 2.00 GiB",
        "Predicted peak 66.00 GiB, measured until then 74.00 GiB",
        "To need less: --zero 3",
        "To need less: a smaller batch",
    ]


def test_the_rank_that_ran_out_is_shown_though_another_allocated_more() -> None:
    """Another process may hold the rest of its card."""
    run = with_failure(rank=5, oom={**OOM, "allocated_bytes": 20 * GIB})
    shown = run_charts.shown_rank(run)
    assert shown is not None and shown.rank == 5
    assert answer(run)[1].startswith("Rank 5 on node-0 ran out of GPU memory")
    assert "rank 5, which of 8 ranks ran out of memory" in str(run_charts.memory_over_time(run))


def test_the_hosts_memory_is_not_taken_for_the_cards() -> None:
    run = with_failure(
        oom={"memory": "host", "killer": True, "measured_peak_host_rss_bytes": 6 * GIB}, phase=None
    )
    assert answer(run)[1:3] == ["Rank 3 on node-0 ran out of host memory", "Its process held 6.00 GiB"]


def test_what_is_not_known_of_it_is_left_out() -> None:
    lines = answer(with_failure(oom={"memory": "gpu"}, try_next=[]))
    assert lines == ["Out of memory", "Rank 3 on node-0 ran out of GPU memory in backward of step 61"]


def test_a_run_that_ended_well_says_how_much_was_left() -> None:
    lines = answer(report(2))
    assert "the device had 43.0 GiB of 80.0 GiB in use, 37.0 GiB headroom (rank 0)" in lines[1]
