"""Comments that take findings out."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.linter.files import check_files


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("distributed_type: ZERO  # zerokit: ignore[accelerate-distributed-type]\n", 0),
        ("# zerokit: ignore[accelerate-distributed-type]\ndistributed_type: ZERO\n", 0),
        ("distributed_type: ZERO  # zerokit: ignore\n", 0),
        ("distributed_type: ZERO  # zerokit: ignore[another-rule]\n", 1),
        ("# zerokit: ignore-file\n\n\ndistributed_type: ZERO\n", 0),
        ("# zerokit: ignore-file[another-rule]\n\ndistributed_type: ZERO\n", 1),
    ],
)
def test_comments_take_findings_out(text: str, left: int, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    errors = [f for f in check_files([str(path)], kind="accelerate")[0].findings if f.severity == "error"]
    assert len(errors) == left
