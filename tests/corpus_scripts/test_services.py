"""Files for services that start jobs, read by each one's own tool, in an environment of theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.corpus_scripts.environments import python_with

ROOT = Path(__file__).parents[2]
TOOLS = ("skypilot==0.14.1", "dstack==0.22.5", "ray==2.60.0", "torchx==0.7.0")


@pytest.mark.slow
@pytest.mark.timeout(3600)  # they are large
def test_their_own_tools_read_the_files(tmp_path: Path) -> None:
    python = python_with(tmp_path, "services", *TOOLS)
    words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/emit/test_jobs.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-2000:]
