"""What a conversion needs, and why there is none."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.checkpoints import converting
from zerokit.checkpoints.files import ZeroFiles
from zerokit.errors import NothingFits
from zerokit.units import GIB

FACTS = {"ranks": 4, "mics": 0, "is_adam": True, "states": ["exp_avg", "exp_avg_sq"], "buffers": [],
         "frozen": [], "names": 16, "largest": 40 * 10**6}  # fmt: skip


def files(ranks: int = 4, each: int = 300 * 10**6, models: int = 400 * 10**6) -> ZeroFiles:
    return ZeroFiles(folder=Path("c"), ranks=ranks, states=(each,) * ranks, models=(models,))


def room(monkeypatch: pytest.MonkeyPatch, *, disk: int = 1 << 50, host: int = 1 << 50) -> None:
    monkeypatch.setattr(converting, "detect_host", lambda: SimpleNamespace(ram_available_bytes=host))
    monkeypatch.setattr(converting.shutil, "disk_usage", lambda path: SimpleNamespace(free=disk))


@pytest.mark.parametrize(
    ("models", "workers", "measured_gib"),  # of 100M weights, the largest of 40M, on 4 ranks: real processes
    [(400 * 10**6, 1, 0.97), (400 * 10**6, 4, 1.52), (7709, 1, 0.71), (7709, 4, 1.47)],
)
def test_host_memory_is_enough_and_not_twice_what_is_taken(
    monkeypatch: pytest.MonkeyPatch, models: int, workers: int, measured_gib: float
) -> None:
    room(monkeypatch, host=GIB if workers == 1 else 1 << 50)
    needs = converting.to_universal_needs(files(models=models), FACTS)
    assert needs.workers == workers
    assert measured_gib <= needs.host_bytes / GIB < 1.8 * measured_gib


def test_disk_holds_fragments_and_joined_states_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch)
    needs = converting.to_universal_needs(files(models=7709), FACTS)
    assert 2.515 * GIB <= needs.disk_bytes < 2.6 * GIB and 1.397 * GIB <= needs.kept_bytes < 1.45 * GIB


def test_what_has_no_room_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs = converting.Needs(disk_bytes=2 * GIB, kept_bytes=GIB, host_bytes=3 * GIB, workers=2)
    assert str(needs) == "2.00 GiB of disk (1.00 GiB afterwards) and 3.00 GiB of host memory with 2 workers"
    room(monkeypatch, disk=GIB)
    with pytest.raises(NothingFits, match=r"2\.00 GiB of disk .* has 1\.00 GiB free"):
        needs.check("it", tmp_path / "new")
    room(monkeypatch, host=GIB)
    with pytest.raises(NothingFits, match=r"3\.00 GiB of host memory, and 1\.00 GiB are available"):
        needs.check("it", tmp_path)
    room(monkeypatch)
    needs.check("it", tmp_path)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, None),
        ({"is_adam": False, "states": ["exp_avg"]}, "its optimizer keeps exp_avg, and"),
        ({"is_adam": False, "states": []}, "its optimizer keeps no states"),
        ({"buffers": ["bn.running_mean"]}, "bn.running_mean"),
        ({"mics": 4}, "MiCS divided it among 4 ranks each"),
        ({"ranks": 8}, "only 4 of its 8 ranks have their files there"),
    ],
)
def test_what_cannot_go_on_is_named(facts: dict[str, Any], why: str | None) -> None:
    told = converting.why_not_universal(files(), {**FACTS, **facts})
    assert told is None if why is None else why in str(told)


_INTERRUPTED = """
import os, signal, subprocess, time
def main(asked):
    worker = subprocess.Popen(["sleep", "60"])
    with open({pid!r}, "w") as file:
        file.write(str(worker.pid))
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
"""


def test_an_interrupted_conversion_ends_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "deepspeed" / "checkpoint"
    package.mkdir(parents=True)
    (package / "ds_to_universal.py").write_text(_INTERRUPTED.format(pid=str(tmp_path / "pid")))
    (package.parent / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    with pytest.raises(KeyboardInterrupt):
        converting.make_universal(ZeroFiles(folder=tmp_path / "c", ranks=2, states=(1,), models=()), 1)
    process = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    end = time.monotonic() + 5
    while process.exists() and " Z " not in process.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    assert not process.exists() or " Z " in process.read_text()
