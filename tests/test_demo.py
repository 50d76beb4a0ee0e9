"""`./launch.sh` with no arguments: plan for this machine, train under real DeepSpeed, show the table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INSTALLED_HERE = Path(sys.prefix) == ROOT / ".venv" and not (ROOT / ".venv").is_symlink()
"""An environment that another checkout made would be made anew."""


@pytest.fixture(scope="module")
def demo() -> subprocess.CompletedProcess[str]:
    if not INSTALLED_HERE:
        pytest.skip("only in the environment that ./launch.sh made: it would have to install one first")
    return subprocess.run(
        [ROOT / "launch.sh"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def run_folder(demo: subprocess.CompletedProcess[str]) -> Path:
    named = re.search(r"^The run folder: (.*)$", demo.stdout, re.MULTILINE)
    assert named, demo.stdout
    return Path(named[1])


@pytest.mark.slow
def test_it_ends_well_with_the_table_and_what_to_try_next(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "predicted" in demo.stdout
    assert "Next:" in demo.stdout
    assert "Traceback" not in demo.stderr


@pytest.mark.slow
def test_every_rank_trained_and_was_measured_beside_a_prediction(
    demo: subprocess.CompletedProcess[str],
) -> None:
    report = json.loads((run_folder(demo) / "report.json").read_text())
    assert report["outcome"] == "ok"
    assert len(report["ranks"]) >= 1
    for rank in report["ranks"]:
        assert rank["state"] == "finished"
        assert rank["steps"] == 20
        assert rank["peak_host_rss_bytes"] > 100 * 2**20
    assert report["predicted_vs_measured"]


@pytest.mark.slow
def test_the_model_learned(demo: subprocess.CompletedProcess[str]) -> None:
    went = re.search(r"loss went from ([\d.]+) to ([\d.]+)", demo.stdout + demo.stderr)
    assert went
    first, last = float(went[1]), float(went[2])
    assert last < 4.16 < first, "the last loss must be below that of guessing among the tokens that occur"
