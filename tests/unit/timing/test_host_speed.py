"""A host's speed from its probe, against the host that was measured."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from tests.support.h200_operators import measured_operators
from zerokit.catalog import gpus
from zerokit.timing import host_speed, operators
from zerokit.timing.operators import IssuedOperator
from zerokit.timing.recorded_step import step_time


def test_a_probe_like_the_reference_host_has_factor_one():
    probe = dict(host_speed.REFERENCE_SECONDS)
    assert host_speed.factor_of(probe) == pytest.approx(1.0)
    assert host_speed.factor_of({name: took / 2 for name, took in probe.items()}) == pytest.approx(0.5)


def test_the_reference_is_the_measured_host():
    measured = {row["op"]: row["seconds"] for row in measured_operators("host")}
    names = {
        "add": "add, no grad",
        "add_in_place": "mul_ in place",
        "add_with_gradient": "add, grad",
        "view": "view",
        "linear": "nn.Linear module, grad",
        "linear_backward": "backward node (linear), C++ thread",
        "model": "Llama, 16 layers, forward and backward",
    }
    for name, took in host_speed.REFERENCE_SECONDS.items():
        assert took == pytest.approx(measured[names[name]], rel=1e-3)


@pytest.mark.parametrize("probe", [{}, {"add": 0.0}, {"add": float("nan")}, {"else": 1.0}])
def test_a_probe_without_seconds_is_refused(probe):
    with pytest.raises(ValueError, match="positive seconds"):
        host_speed.factor_of(probe)


def test_a_step_tells_the_host_that_it_ran_on():
    """Issued in 0.9 ms on the reference host, of which the GPU needs 0.2: the host sets the pace."""
    by_host = step_time(_kernels(100, 8), gpus.load("h200"), 1).by_host_factor
    reference = host_speed.HostSpeed(factor=1.2, source="")
    took = step_time(_kernels(100, 8), gpus.load("h200"), 1, host=reference).seconds
    found = host_speed.of_step(by_host, took, "a run")
    assert found is not None and found.factor == pytest.approx(1.2, rel=0.01)
    assert found.low == pytest.approx(1.2 / 1.08, rel=0.01)
    assert found.high == pytest.approx(1.2 * 1.08, rel=0.01)


def test_a_step_that_the_gpu_paces_or_no_host_explains_tells_nothing():
    by_host = step_time(_kernels(2000, 10**9), gpus.load("h200"), 1).by_host_factor
    assert host_speed.of_step(by_host, by_host[1][1], "a run") is None
    by_host = step_time(_kernels(100, 8), gpus.load("h200"), 1).by_host_factor
    for seconds in (0.5 * by_host[0][1], 2 * by_host[-1][1]):
        assert host_speed.of_step(by_host, seconds, "a run") is None
    assert host_speed.of_step((), 1.0, "a run") is None


def _kernels(count: int, size: int) -> list[IssuedOperator]:
    return [IssuedOperator(operators.KERNEL, "add", launches=1, bytes_read=size) for _ in range(count)]


def test_more_ranks_usually_wait_for_a_slower_host():
    factors = [host_speed.of_slowest_usually(0.88, ranks) for ranks in (1, 2, 4, 8, 512)]
    assert factors == sorted(factors)
    assert factors[0] == 0.88
    # nobody waits for longer than a probe's nine tenths of rounds say: 1.3 times the middle
    assert factors[-1] == pytest.approx(1.3 * 0.88)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_the_slowest_of_several_ranks_is_that_of_skewed_rounds(ranks: int, spread: float) -> None:
    drawn = random.Random(1)
    rounds = sorted(0.9 * math.exp(drawn.gauss(0, spread)) for _ in range(20_000))
    middle, high = rounds[10_000], rounds[19_000]
    slowest = statistics.median(max(drawn.choices(rounds, k=ranks)) for _ in range(20_000))
    host = host_speed.HostSpeed(factor=middle, source="probe", high=high)
    assert host_speed.of_slowest(host, ranks) == pytest.approx(slowest, rel=0.02)
