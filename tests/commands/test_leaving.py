"""How the command line ends its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_TORCH = """
import os

class Held:
    def __init__(self):
        self.me = self
    def __del__(self):
        os.write(1, b"freed")

Held()
"""


def test_what_pytorch_and_its_libraries_hold_is_freed(tmp_path: Path) -> None:
    """Triton lists on 30 lines below the answer what it was not let free; here garbage stands for it."""
    (tmp_path / "torch.py").write_text(_TORCH)
    program = "import gc; gc.disable(); import torch; from zerokit.cli import main; main(['gpus', 'nothing'])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2 and "nothing" in done.stderr
    assert done.stdout == "freed"
