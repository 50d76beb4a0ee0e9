"""A host's speed from its probe, against the host that was measured."""

from __future__ import annotations

import pytest

from tests.support.h200_operators import measured_operators
from zerokit.timing import host_speed


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
