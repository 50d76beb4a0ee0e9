"""Operators recorded by a rehearsal, written and read back."""

from __future__ import annotations

import json

import pytest

from zerokit.timing import operators
from zerokit.timing.operators import Event


def product(m: int, n: int, k: int) -> Event:
    return Event(
        operators.KERNEL,
        "mm",
        shapes=((1, m, n, k),),
        dtype="bfloat16",
        flops=2.0 * m * n * k,
        bytes_read=2 * (m * k + k * n),
        bytes_written=2 * m * n,
        launches=1,
    )


def test_rows_come_back_as_events():
    event = product(2, 3, 4)
    assert list(operators.from_rows(json.loads(json.dumps([event])))) == [event]
    with pytest.raises(ValueError, match="no kind"):
        list(operators.from_rows([["dance", "x"]]))
