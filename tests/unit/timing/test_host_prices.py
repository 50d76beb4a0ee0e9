"""What the host pays for Python between operators."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from zerokit.timing import host_prices, operators
from zerokit.timing.operators import IssuedOperator

DATA = Path(__file__).parents[3] / "benchmarks" / "measure" / "data"


def test_the_host_pays_for_python_between_operators():
    plain = IssuedOperator(operators.KERNEL, "add", launches=1)
    busy = plain._replace(python_calls=100, c_calls=30)
    assert host_prices.issue_seconds(busy) - host_prices.issue_seconds(plain) == pytest.approx(
        110 * host_prices.REFERENCE.python_call
    )


def test_a_triton_function_takes_its_launcher_as_measured():
    """Its Python launcher against ``x * y`` in the same loop (``triton-launches.jsonl``)."""
    path = DATA / "triton-launches.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    measured = statistics.median(row["fourteen_arguments"] / row["multiplied"] for row in rows)
    product, launched = (
        host_prices.issue_seconds(IssuedOperator(operators.KERNEL, name, launches=1))
        for name in ("mul", f"{operators.TRITON}rms_norm")
    )
    assert launched / product == pytest.approx(measured, rel=0.1)
