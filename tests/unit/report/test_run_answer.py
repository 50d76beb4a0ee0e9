"""The box at the head of a run's page: what ran out, how full it was, what was predicted, what to do."""

from __future__ import annotations

from typing import Any

from tests.support.report_pages import GIB, OOM, out_of_memory, report
from zerokit.report import run_charts
from zerokit.report.run_answer import answer
from zerokit.report.schema import RunReport


def with_failure(**changes: Any) -> RunReport:
    body = out_of_memory().to_dict()
    body["first_failure"] |= changes
    return RunReport.model_validate(body)


def test_the_rank_that_ran_out_is_named_with_how_full_its_card_was() -> None:
    assert answer(out_of_memory()) == [
        "Out of memory",
        "Rank 3 on node-0 ran out of GPU memory in backward of step 61",
        "78.6 GiB of the card's 80.0 GiB were in use, its tensors took 74.0 GiB, fragmentation 2.0 GiB, "
        "it asked for 4.0 GiB more",
        "Peak allocated of the other 7 ranks: 64.0 GiB to 66.0 GiB",
        "Predicted peak 66.0 GiB, measured 74.0 GiB until then (rank 3)",
        "To need less: --zero 3",
        "To need less: a smaller batch",
    ]


def test_a_request_larger_than_the_card_says_nothing_of_headroom() -> None:
    oom = {"asked_bytes": 60 * GIB, "device_free_bytes": 43 * GIB, "device_total_bytes": 80 * GIB}
    lines = answer(with_failure(oom=oom))
    assert lines[2] == "37.0 GiB of the card's 80.0 GiB were in use, it asked for 60.0 GiB more"
    assert "headroom" not in " ".join(lines)


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
    assert answer(run)[1:3] == ["Rank 3 on node-0 ran out of host memory", "Its process held 6.0 GiB"]


def test_what_is_not_known_of_it_is_left_out() -> None:
    lines = answer(with_failure(oom={"memory": "gpu"}))
    assert lines[1:3] == [
        "Rank 3 on node-0 ran out of GPU memory in backward of step 61",
        "Peak allocated of the other 7 ranks: 64.0 GiB to 66.0 GiB",
    ]


def test_a_run_that_ended_well_says_how_much_was_left() -> None:
    lines = answer(report(2))
    assert "the device had 43.0 GiB of 80.0 GiB in use, 37.0 GiB headroom (rank 0)" in lines[1]
