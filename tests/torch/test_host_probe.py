"""The probe of the host's speed, on the device there is."""

from __future__ import annotations

import torch

from zerokit.doctor.host_probe import probe_host
from zerokit.timing.host_speed import REFERENCE_SECONDS, speed_of


def test_every_kind_of_work_is_timed_in_each_round():
    rounds = probe_host(torch.device("cpu"), seconds=0.2)
    assert rounds.keys() == REFERENCE_SECONDS.keys()
    assert len({len(entry) for entry in rounds.values()}) == 1
    assert all(0 < took < 5 for entry in rounds.values() for took in entry)
    found = speed_of(rounds, "here")
    assert found.low is not None and found.high is not None and found.low <= found.factor <= found.high
