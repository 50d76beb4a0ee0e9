"""Reports of run folders that tests have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerokit.launcher.verdict.evidence import read_rank_files
from zerokit.launcher.verdict.rank_end import RankExit
from zerokit.launcher.verdict.report import build_report
from zerokit.launcher.verdict.verdict import Evidence
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
    files = read_rank_files(run_dir)
    evidence = Evidence(
        expected_ranks=ranks, logs=files.logs, last_words=files.last_words, exits=exits, **seen
    )
    report = build_report(evidence, plan=plan, predict_again=predict_again, problems=files.problems)
    written = report.to_dict()
    assert RunReport.model_validate(written) == report
    return written
