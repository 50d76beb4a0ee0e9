"""What single operators took on an H200 and its host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zerokit.timing import operators
from zerokit.timing.operators import IssuedOperator

_FILE = Path(__file__).parents[1] / "data" / "h200" / "h200-operators.jsonl"


def measured_operators(kind: str) -> list[dict[str, Any]]:
    """The measured rows of one kind: ``linear``, ``pointwise``, ``sdpa`` or ``host``."""
    rows = [json.loads(line) for line in _FILE.read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def product(m: int, n: int, k: int) -> IssuedOperator:
    """A product of matrices in bf16, as a rehearsal records it."""
    return IssuedOperator(
        operators.KERNEL,
        "mm",
        shapes=((1, m, n, k),),
        dtype="bfloat16",
        flops=2.0 * m * n * k,
        bytes_read=2 * (m * k + k * n),
        bytes_written=2 * m * n,
        launches=1,
    )
