"""What the host pays for Python between operators."""

from __future__ import annotations

import pytest

from zerokit.timing import host_prices, operators
from zerokit.timing.operators import IssuedOperator


def test_the_host_pays_for_python_between_operators():
    plain = IssuedOperator(operators.KERNEL, "add", launches=1)
    busy = plain._replace(python_calls=100, c_calls=30)
    assert host_prices.issue_seconds(busy) - host_prices.issue_seconds(plain) == pytest.approx(
        110 * host_prices.REFERENCE.python_call
    )
