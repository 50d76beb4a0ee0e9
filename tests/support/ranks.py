"""Starts real rank processes through the bootstrap file, as a launcher would."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import zerokit.launcher.rank
from zerokit.launcher.rank_file import RankLog, Record, rank_file, read_rank_file
from zerokit.launcher.supervisor.hang_inquiry import slowdown

BOOTSTRAP = Path(next(iter(zerokit.launcher.rank.__path__))) / "bootstrap.py"


def write_script(folder: Path, text: str, name: str = "train.py") -> Path:
    """Write a dedented script into ``folder``."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def rank_environment(run_dir: Path, rank: int = 0, ranks: int = 1, device: str = "cpu") -> dict[str, str]:
    """What a launcher sets for a rank."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "ZEROKIT_RUN_DIR": str(run_dir),
        "ZEROKIT_DEVICE": device,
    }


def start_rank(
    run_dir: Path, *arguments: str | Path, rank: int = 0, ranks: int = 1, device: str = "cpu"
) -> subprocess.Popen[str]:
    """Start ``bootstrap.py ARGUMENTS`` as one rank; output is captured."""
    return subprocess.Popen(
        [sys.executable, str(BOOTSTRAP), *map(str, arguments)],
        env=rank_environment(run_dir, rank, ranks, device),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_rank(
    run_dir: Path, *arguments: str | Path, rank: int = 0, ranks: int = 1, device: str = "cpu"
) -> tuple[int, str, str]:
    """Run one rank to its end; returns exit code, standard output and standard error."""
    process = start_rank(run_dir, *arguments, rank=rank, ranks=ranks, device=device)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def read_rank(run_dir: Path, rank: int = 0) -> RankLog:
    """What rank ``rank`` left behind."""
    return read_rank_file(rank_file(run_dir, rank))


def ticks_of(run_dir: Path, rank: int = 0) -> list[Record]:
    """The ticks that a rank has written by now."""
    if not rank_file(run_dir, rank).exists():
        return []
    return [record for record in read_rank(run_dir, rank).records if record["type"] == "tick"]


def wait_for(condition: object, what: str, seconds: float = 30.0) -> None:
    """Wait until ``condition()`` is true; fails the test after ``seconds`` of an idle machine."""
    assert callable(condition)
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds * slowdown(), f"waited {seconds} s for {what}"
        time.sleep(0.02)


LIMITED_SCRIPT = """
    import time

    # an engine as zerokit.launcher.rank.hooks takes hold of it, without torch or DeepSpeed
    from zerokit.launcher.rank import probe; from zerokit.launcher.rank import step_limit as steplimit

    limit = steplimit.of_environment(probe.ACTIVE)
    for step in range(100):
        time.sleep(0.02 if step < 2 else 0.01)
        probe.ACTIVE.step_done()
        if limit is not None:
            limit.step_done()
    print("trained to the end")
"""


def run_limited(folder: Path, monkeypatch: pytest.MonkeyPatch, steps: str | None) -> tuple[int, str]:
    """Run a script of 100 steps under a limit of steps; its exit code and standard output."""
    if steps is not None:
        monkeypatch.setenv("ZEROKIT_STOP_AFTER_STEPS", steps)
    code, out, err = run_rank(folder, write_script(folder, LIMITED_SCRIPT))
    assert "Traceback" not in err, err
    return code, out
