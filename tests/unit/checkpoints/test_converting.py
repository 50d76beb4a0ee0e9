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
from zerokit.errors import InputError, NothingFits
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
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to"):
        needs.check("it", tmp_path / "file" / "new")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, None),
        ({"is_adam": False, "states": ["exp_avg"]}, "its optimizer keeps exp_avg, and"),
        ({"is_adam": False, "states": []}, "its optimizer keeps no states"),
        ({"buffers": ["bn.running_mean"]}, "bn.running_mean"),
        ({"mics": 4}, "MiCS divided it among 4 ranks each"),
        ({"ranks": 8}, "8 ranks wrote it, and files of 4 are there"),
    ],
)
def test_what_cannot_go_on_is_named(facts: dict[str, Any], why: str | None) -> None:
    told = converting.why_not_universal(files(), {**FACTS, **facts})
    assert told is None if why is None else why in str(told)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    """In DeepSpeed's place, in the process that converts."""
    path = folder / "deepspeed" / name
    path.parent.mkdir(parents=True)
    path.write_text(code)
    (folder / "deepspeed" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))


_FAILED = """
from pathlib import Path
get_fp32_state_dict_from_zero_checkpoint = None
def convert_zero_checkpoint_to_fp32_state_dict(folder, out, **more):
    Path(out).mkdir(exist_ok=True)
    Path(out, "model-00001-of-00002.safetensors").touch()
    raise OSError("no space left on device")
"""


@pytest.mark.parametrize("existed", [True, False])
def test_weights_that_failed_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    stand_in(tmp_path, monkeypatch, "utils/zero_to_fp32.py", _FAILED)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("{}")
    out = tmp_path / "model"
    if existed:
        out.mkdir()
    needs = converting.Needs(disk_bytes=0, kept_bytes=0, host_bytes=0)
    weights = converting.Weights(checkpoint=tmp_path / "c", task=("zero_to_weights", "c", "t"), needs=needs)
    with pytest.raises(InputError, match="no space left on device"):
        weights.write(out)
    assert out.exists() == existed and not (existed and any(out.iterdir()))


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
    code = _INTERRUPTED.format(pid=str(tmp_path / "pid"))
    stand_in(tmp_path, monkeypatch, "checkpoint/ds_to_universal.py", code)
    with pytest.raises(KeyboardInterrupt):
        converting.make_universal(ZeroFiles(folder=tmp_path / "c", ranks=2, states=(1,), models=()), 1)
    process = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    end = time.monotonic() + 5
    while process.exists() and " Z " not in process.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    assert not process.exists() or " Z " in process.read_text()
