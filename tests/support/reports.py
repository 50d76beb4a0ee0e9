"""Reports of run folders that tests have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerokit.launcher.verdict.evidence import Evidence, RankExit
from zerokit.launcher.verdict.report import build_report
from zerokit.report.schema import RunReport


def report_of(
    run_dir: Path,
    ranks: int = 1,
    *,
    exits: Sequence[RankExit] = (),
    plan: Any = None,
    predict_again: Any = None,
    **seen: Any,
) -> dict[str, Any]:
    """``report.json`` of a run whose ranks ended as ``exits`` say; ``seen``: more of the evidence."""
    evidence = Evidence(expected_ranks=ranks, exits=list(exits), **seen)
    evidence.read_files(run_dir)
    report = build_report(evidence, plan=plan, predict_again=predict_again)
    written = report.to_dict()
    assert RunReport.model_validate(written) == report
    return written
