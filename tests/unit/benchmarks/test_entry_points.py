"""The list of public scripts that were rehearsed, and what came of each."""

from __future__ import annotations

import json

from benchmarks.rehearsal.entry_points import ENTRY_POINTS, LIST


def test_every_listed_script_has_its_outcome() -> None:
    rows = [
        json.loads(line) for line in LIST.with_name("entry-points-rehearsed.jsonl").read_text().splitlines()
    ]
    assert [row["name"] for row in rows] == [entry.name for entry in ENTRY_POINTS]
    for row, entry in zip(rows, ENTRY_POINTS, strict=True):
        assert (row["script"], row["arguments"], row["gpus"]) == (entry.script, entry.arguments, entry.gpus)
        assert row["complete"] == (row["stopped"] is None and row["steps"] > 0), row["name"]
