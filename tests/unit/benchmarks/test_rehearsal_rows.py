"""Measured runs as the benchmark of rehearsals reads them."""

from __future__ import annotations

import pytest

from benchmarks.rehearsal.rows import beside_nearest, planned_runs, raw_runs


def test_a_figure_is_compared_with_the_rank_that_comes_nearest() -> None:
    run = next(
        run for run in raw_runs() if run.name == "llama3.2-3b.w2.z3.b1.s2048.ck.off_opt=cpu.off_par=cpu"
    )
    assert run.peak_bytes == run.peaks_of_ranks[0] == 6697650176
    assert beside_nearest(6760129536, run.peaks_of_ranks) == pytest.approx(-0.0194, abs=1e-4)
    assert beside_nearest(13595836416, run.reserved_of_ranks) == pytest.approx(0.48047, abs=1e-4)


def test_every_measured_run_has_the_figures_of_all_its_ranks() -> None:
    for run in (*raw_runs(), *planned_runs()):
        assert len(run.peaks_of_ranks) == len(run.reserved_of_ranks) == run.gpus, run.name
        assert run.reserved_of_ranks[0] == run.reserved_bytes, run.name
