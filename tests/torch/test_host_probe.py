"""The probe of the host's speed, on the device there is."""

from __future__ import annotations

import sys

import pytest
import torch

from zerokit.doctor.host_probe import probe_host
from zerokit.timing.host_speed import MODEL, REFERENCE_SECONDS, speed_of


@pytest.mark.parametrize("has_model", [True, False])
def test_a_model_is_timed_in_each_round_or_every_other_kind_of_work(has_model, monkeypatch):
    if not has_model:
        monkeypatch.setitem(sys.modules, "transformers", None)
    rounds = probe_host(torch.device("cpu"), seconds=0.2)
    assert rounds.keys() == ({MODEL} if has_model else REFERENCE_SECONDS.keys() - {MODEL})
    assert len({len(entry) for entry in rounds.values()}) == 1
    assert all(0 < took < 5 for entry in rounds.values() for took in entry)
    found = speed_of(rounds)
    assert found.low is not None and found.high is not None and found.low <= found.factor <= found.high
