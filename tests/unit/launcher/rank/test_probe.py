"""Leaks: memory that grows from step to step."""

from __future__ import annotations

import pytest

from zerokit.launcher.rank.probe import GrowthWatch
from zerokit.units import MIB


def watch(values, threshold=8 * MIB):
    growth = GrowthWatch(threshold)
    for step, value in enumerate(values, 1):
        growth.observe(step, value)
    return growth.growth()


@pytest.mark.parametrize("steps", [60, 1000, 20_000])
def test_a_leak_is_found_with_its_rate(steps):
    noisy = [100 * MIB + step * MIB + (step % 7) * 3 * MIB for step in range(steps)]
    found = watch(noisy)
    assert found is not None
    assert found["bytes_per_step"] == pytest.approx(MIB, rel=0.1)


@pytest.mark.parametrize(
    "values",
    [
        [100 * MIB] * 5000,
        [100 * MIB + (step % 50) * MIB for step in range(5000)],  # sequences of many lengths
        [min(step, 60) * 10 * MIB for step in range(5000)],  # a cache that fills up
        [100 * MIB + step * 100 for step in range(5000)],  # less than anyone would notice
        [500 * MIB - step * MIB // 20 for step in range(5000)],
        [step * 100 * MIB for step in range(12)],  # too few steps to say
    ],
)
def test_no_leak_is_named_where_there_is_none(values):
    assert watch(values) is None
