"""How the command line begins and ends its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_TORCH = """
import os
import signal

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


def test_an_interrupt_while_it_starts_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "zerokit", "gpus"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("words", "code"), [(["gpus"], 0), (["plan", "--model", "nosuch"], 2)])
def test_a_reader_that_goes_away_changes_no_exit_code(words: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "zerokit", *words], stdout=writer, stderr=writer, timeout=100, check=False
        )
    finally:
        os.close(writer)
    assert ended.returncode == code


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_exit_code(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m zerokit gpus h200 {closed}', sys.executable], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr
