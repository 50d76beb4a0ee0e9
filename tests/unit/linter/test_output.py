"""Findings as text, with the line that they are about."""

from __future__ import annotations

from pathlib import Path

from zerokit.linter.files import check_files
from zerokit.linter.output import as_text

BROKEN = '{\n "train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 7}\n}\n'
GOOD = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'


def test_the_source_line_stands_below_the_finding(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(BROKEN)
    lines = as_text(check_files([str(path)])).splitlines()
    assert lines[1] == '  3 |  "zero_optimization": {"stage": 7}'
    assert lines[2] == "    |                        ^^^^^^^"
    path.write_text(GOOD[:-1] + ', "comet": {"api_key": 3}}')
    assert "api_key" not in "".join(as_text(check_files([str(path)])).splitlines()[1:2])
