"""``zerokit rehearse`` in a process of its own, and the small scripts it is tried on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1] / "rehearsal" / "scripts"


def rehearse(folder: Path, *arguments: str, home: Path | None = None) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON on standard output, and standard error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home or folder)}
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "rehearse", "--json", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr
