"""Events of a run: in the table, and as marks on the chart of memory over time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.report_pages import out_of_memory, report
from tests.support.run_reports import GIB
from zerokit.report import charts, run_charts
from zerokit.report.html import render_html
from zerokit.report.run_charts import allocator, left_over
from zerokit.report.schema import RankReport, RunReport


def rank(number: int, **more: Any) -> dict[str, Any]:
    points = [[float(at), "load" if at < 10 else "forward", at, 10 * GIB, 11 * GIB, 12 * GIB, GIB]
              for at in range(0, 101, 2)]  # fmt: skip
    return {"rank": number, "host": "a", "state": "finished", "device": "cuda", "started_at": 1000.0 + number,
            "peak_allocated_bytes": (20 - number) * GIB, "timeline": points, **more}  # fmt: skip


def run(*ranks: dict[str, Any], **more: Any) -> RunReport:
    return RunReport.model_validate(
        {"schema": "zerokit.report/1", "outcome": "ok", "exit_code": 0, "started_at": 990.0,
         "ranks": list(ranks), **more})  # fmt: skip


def test_events_are_drawn_with_a_flag_a_line_and_a_legend() -> None:
    events = [{"at": 30.0, "what": "evaluation"}, {"at": 50.0, "what": "save", "times": 2},
              {"at": 51.0, "what": "retry", "times": 3}]  # fmt: skip
    chart = str(run_charts.memory_over_time(run(rank(0, events=events))))
    titles = ["evaluation, after 30.0 s", "2 saves, after 50.0 s", "3 allocation retries, after 51.0 s"]
    for width in charts.WIDTHS:
        (svg,) = re.findall(rf'<svg class="w{width}".*?</svg>', chart)
        lines = dict(re.findall(r'<path d="M ([\d.]+) [\d.]+ L \1 [\d.]+"[^>]*><title>(.*?)</title>', svg))
        assert sorted(lines.values()) == sorted(titles), "a line for each"
        at = {title: float(x) for x, title in lines.items()}
        evaluation, save, retry = (at[title] for title in titles)
        assert (save - evaluation) / (retry - save) == pytest.approx(20, rel=0.2)
        flags = re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(\w)<title>(.*?)</title>', svg)
        assert {(letter, title) for _, letter, title in flags} == set(zip("ESR", titles, strict=True))
        heights = {letter: float(y) for y, letter, _ in flags}
        assert heights["S"] < heights["R"] - 11, "close to the retry's, so above it"
    assert {"allocation retry", "save", "evaluation"} <= set(re.findall(r"</span>([a-z ]+)</li>", chart))
    assert "evaluation, 1 marked" in chart


def test_the_first_failure_is_marked_on_the_clock_of_the_rank_that_is_drawn() -> None:
    failure = {"rank": 1, "host": "a", "kind": "exception", "at": 1060.0, "phase": "backward"}
    found = run(rank(0), rank(1), first_failure=failure, outcome="rank_failed", exit_code=10)
    (mark,) = run_charts.marks(found, found.ranks[0])
    assert (mark.at, mark.title) == (60.0, "first failure: exception in backward, rank 1, after 60.0 s")
    assert ("60.0 s", "1", "first failure: exception in backward") in run_charts.table(found, found.ranks[0])


def test_an_out_of_memory_is_marked_once() -> None:
    failure = {"rank": 0, "host": "a", "kind": "oom", "at": 1070.1, "phase": "backward"}
    found = run(rank(0, events=[{"at": 70.0, "what": "oom"}]), first_failure=failure, outcome="oom")
    assert [mark.label for mark in run_charts.marks(found, found.ranks[0])] == ["out of memory"]
    unseen = run(rank(0), first_failure=failure, outcome="oom")  # the kernel's killer leaves no event
    assert [mark.label for mark in run_charts.marks(unseen, unseen.ranks[0])] == ["out of memory"]


def test_the_table_tells_of_the_fullest_rank_and_of_lack_of_memory_on_any() -> None:
    mine = [{"at": 30.0, "what": "evaluation"}]
    other = [{"at": 30.0, "what": "evaluation"}, {"at": 40.0, "what": "retry", "times": 2}]
    found = run(rank(0, events=mine), rank(1, events=other, alloc_retries=2), rank(2, alloc_retries=5))
    assert run_charts.table(found, found.ranks[0]) == [
        ("0 s", "0", "load begins"),
        ("10.0 s", "0", "training begins"),
        ("30.0 s", "0", "evaluation"),
        ("41.0 s", "1", "2 allocation retries"),
        ("–", "2", "5 allocation retries in all"),
    ]


def test_a_table_ends_with_what_it_leaves_out_and_unknown_kinds_are_shown() -> None:
    many = [{"at": float(at), "what": "<b>new</b>"} for at in range(120)]
    found = run(rank(0, events=many))
    rows = run_charts.table(found, found.ranks[0])
    assert len(rows) == 101 and rows[-1] == ("…", "", "22 more are in report.json")
    chart = str(run_charts.memory_over_time(found))
    flags = [len(re.findall(r">•<title>", svg)) for svg in re.findall(r"<svg.*?</svg>", chart)]
    assert 20 < flags[0] < flags[1] < flags[2] <= 120  # as many as have room
    assert "<b>" not in chart and "&lt;b&gt;new" in chart


def test_a_failure_of_which_little_is_known_says_no_more() -> None:
    failure = {"rank": 0, "host": "a", "kind": "oom", "phase": "backward"}
    page = render_html(run(rank(0), first_failure=failure, outcome="oom", exit_code=10))
    assert "First failure: rank 0 on a, in backward<" in page and "<pre" not in page


def test_a_cpu_ranks_prediction_is_named_as_host_memory() -> None:
    points = [[float(at), "forward", at, None, None, None, at * GIB] for at in range(1, 5)]
    compared = {"kind": "host_memory", "predicted_for": "plan", "rank": 0,
                "peak_bytes": {"predicted": 3 * GIB, "measured": 4 * GIB, "error_fraction": 0}}  # fmt: skip
    cpu = rank(0, device="cpu", timeline=points, peak_allocated_bytes=None, peak_host_rss_bytes=4 * GIB)
    chart = str(run_charts.memory_over_time(run(cpu, predicted_vs_measured=compared)))
    assert "predicted peak of host memory, 3.0 GiB" in chart and "predicted peak allocated" not in chart


def words(run: RunReport, rank: RankReport) -> str:
    return str(allocator(run, rank)).partition('aria-label="')[2].partition('"')[0]


def changed(**values: Any) -> tuple[RunReport, RankReport]:
    run = report(1)
    return run, run.ranks[0].model_copy(update=values)


def test_the_peaks_and_the_fullest_sample_are_told_apart() -> None:
    samples = [[0.0, "load", 0, 10 * GIB, 40 * GIB, 0, 0], [1.0, "forward", 1, 30 * GIB, 40 * GIB, 0, 0]]
    run, rank = changed(
        peak_allocated_bytes=36 * GIB, peak_reserved_bytes=48 * GIB,
        timeline=[*samples, [2.0, "step", 1, 20 * GIB, 48 * GIB, 0, 0]],
    )  # fmt: skip
    assert words(run, rank) == (
        "Reserved by the allocator, rank 0; peaks 48.00 GiB, 25.0 % left over; "
        "fullest sample 40.00 GiB, 25.0 % left over"
    )


def test_what_is_left_over_when_memory_ran_out_is_fragmentation() -> None:
    run = out_of_memory()
    assert words(run, run.ranks[3]).endswith("; out of memory 76.00 GiB, 2.6 % left over")
    assert "out of memory" not in words(run, run.ranks[0])
    page = render_html(run)
    assert "fragmented: reserved and not allocated after the cache was given back" in page


def test_what_no_rank_measured_is_not_drawn() -> None:
    run, rank = changed(peak_allocated_bytes=None, peak_reserved_bytes=None, timeline=[])
    assert allocator(run, rank) is None
    strange = [[0.0, "load", 0, None, "x", 0, 0], [], [0.0, "load"]]
    run, rank = changed(peak_allocated_bytes=None, peak_reserved_bytes=None, timeline=strange)
    assert allocator(run, rank) is None


def test_each_rank_says_its_share() -> None:
    assert '<td data-name="reserved, left over">2 %</td>' in render_html(report(2))


@pytest.mark.parametrize(
    ("allocated", "reserved", "expected"),
    [(30, 40, (10, 0.25)), (40, 40, (0, 0.0)), (None, 40, None), (30, None, None), (0, 0, None)],
)
def test_the_share_is_of_what_is_reserved(
    allocated: int | None, reserved: int | None, expected: tuple[int, float] | None
) -> None:
    assert left_over(allocated, reserved) == expected
