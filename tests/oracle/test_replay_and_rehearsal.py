"""The replay beside a rehearsal of the same loop: two models of memory that share hardly any code."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay_and_rehearsal import LIMIT, compare, names
from tests.support.packages import needs

needs("torch")
needs("deepspeed")

IN_CI = "llama.z3.ck"
CASES = [name if name == IN_CI else pytest.param(name, marks=pytest.mark.slow) for name in names()]


@pytest.mark.parametrize("name", CASES)
def test_both_tell_the_same_peak_of_every_phase(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = compare(name, tmp_path)
    assert found.problem is None
    assert max(map(abs, found.errors().values())) <= LIMIT, found.pairs
