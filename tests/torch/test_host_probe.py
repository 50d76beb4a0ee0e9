"""The probe of the host's speed, on the device there is."""

from __future__ import annotations

import math

import torch

from zerokit.doctor.measure_rank import probe_host
from zerokit.timing.host_speed import REFERENCE_SECONDS, factor_of


def test_every_operator_of_the_reference_is_probed():
    found = probe_host(torch.device("cpu"))
    assert found.keys() == REFERENCE_SECONDS.keys()
    assert all(0 < took < 1 for took in found.values())
    assert math.isfinite(factor_of(found))
