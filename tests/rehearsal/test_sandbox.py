"""The view of the file system that forgets, entered by processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ENTER = """
import sys
from pathlib import Path
from zerokit.rehearsal.process import sandbox

gone, shared = sys.argv[1:]
listed = sandbox._coverable
sandbox._coverable = lambda mounts, folder="/": [*listed(mounts, folder), gone]
try:
    sandbox.enter([Path(shared)])
except sandbox.NoSandbox as refused:
    print(refused)
else:
    print("entered")
"""


def test_a_folder_that_vanishes_meanwhile_does_not_keep_a_rehearsal_out(tmp_path: Path) -> None:
    """Other programs remove their temporary folders while ours are listed and covered."""
    done = subprocess.run(
        [sys.executable, "-c", _ENTER, str(tmp_path / "gone"), str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if done.stdout.startswith(("unshare", "/proc/self")):
        pytest.skip(f"no namespaces here: {done.stdout.strip()}")
    assert done.stdout.strip() == "entered"
