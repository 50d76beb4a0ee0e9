"""Operators recorded by a rehearsal, written and read back."""

from __future__ import annotations

import json

import pytest

from tests.support.h200_operators import product
from zerokit.timing import operators


def test_rows_come_back_as_events():
    event = product(2, 3, 4)
    assert list(operators.from_rows(json.loads(json.dumps([event])))) == [event]
    with pytest.raises(ValueError, match="no kind"):
        list(operators.from_rows([["dance", "x"]]))
