"""A rank's share of its machine's cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerokit.launcher import rank_start

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("count", ["LOCAL_WORLD_SIZE", "LOCAL_SIZE"])
def test_a_rank_takes_its_share_over_what_the_launcher_set(
    count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerokit.launcher.rank_start.cores_per_rank", lambda ranks: 64 // ranks)
    environment = {"ZEROKIT_SHARE_CORES": "1", count: "8", "OMP_NUM_THREADS": "1"}
    rank_start.take_share(environment)
    assert environment["OMP_NUM_THREADS"] == "8"


def test_without_being_told_nothing_changes() -> None:
    for environment in ({"LOCAL_WORLD_SIZE": "8", "OMP_NUM_THREADS": "1"}, {"ZEROKIT_SHARE_CORES": "1"}):
        before = dict(environment)
        rank_start.take_share(environment)
        assert environment == before


def test_every_rank_has_a_core_and_never_more_than_there_are() -> None:
    assert rank_start.cores_per_rank(10_000) == 1
    assert 1 <= rank_start.cores_per_rank(1) <= (os.cpu_count() or 1)


def test_the_script_of_a_rank_sees_it(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text("import os\nprint('threads', os.environ['OMP_NUM_THREADS'])\n")
    environment = {**os.environ, "ZEROKIT_SHARE_CORES": "1", "LOCAL_WORLD_SIZE": "10000",
                   "OMP_NUM_THREADS": "7", "ZEROKIT_RUN_DIR": str(tmp_path), "ZEROKIT_DEVICE": "cpu",
                   "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # fmt: skip
    bootstrap = ROOT / "zerokit" / "launcher" / "rank" / "bootstrap.py"
    done = subprocess.run([sys.executable, str(bootstrap), "--", "--", str(script)], env=environment,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert "threads 1" in done.stdout
