"""What the allocator reserved and no tensor had: of the peaks, of the fullest sample, and out of memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.report_pages import GIB, out_of_memory, report
from zerokit.report.allocator_chart import allocator, left_over
from zerokit.report.html import render_html
from zerokit.report.schema import RankReport, RunReport


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
