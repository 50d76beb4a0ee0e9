"""What single operators took on an H200 and its host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "data" / "h200" / "h200-operators.jsonl"


def measured_operators(kind: str) -> list[dict[str, Any]]:
    """The measured rows of one kind: ``linear``, ``pointwise``, ``sdpa`` or ``host``."""
    rows = [json.loads(line) for line in _FILE.read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]
