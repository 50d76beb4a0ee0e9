"""A working folder from strangers, with real launchers, ranks and torch: none of its modules is imported.

The same runs tell where torch's store listens.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from tests.support.strangers_folder import MAIN, hostile_folder, run_commands, run_in


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules say so when they are imported."""
    return hostile_folder(tmp_path)


_READING_WITH_TORCH = (
    ("check", "--deep", "ds.json", "accelerate.yaml"),
    ("plan", "--model", "config.json", "--gpus", "2", "--gpu", "h200", "--out", "planned"),
    ("rehearse", "--gpu", "h200", "scripts/train.py"),
)


@pytest.mark.slow
def test_reading_with_torch_runs_nothing_of_it(hostile: Path) -> None:
    """``rehearse`` runs the script that is named, and sees its folder alone."""
    pytest.importorskip("deepspeed")
    run_commands(hostile, _READING_WITH_TORCH)


@pytest.mark.slow
def test_measuring(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    run_in(hostile, *MAIN, "doctor", "--measure")


_SEEN = """
import os, sys, pathlib, beside
seen = repr((sys.path, os.environ.get('PYTHONPATH')))
pathlib.Path('path-' + os.environ['RANK']).write_text(seen)
"""
_LISTENING = """
import json, os
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
listening = {}  # inode -> address, port
for table in ("tcp", "tcp6"):
    for line in Path("/proc/net", table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            listening[f"socket:[{fields[9]}]"] = fields[1].rsplit(":", 1)
found = set()
mine = b"ZEROKIT_RUN_DIR=" + os.environb[b"ZEROKIT_RUN_DIR"]
for process in Path("/proc").glob("[0-9]*"):
    try:
        if mine not in (process / "environ").read_bytes():
            continue
        for fd in (process / "fd").iterdir():
            address, port = listening.get(os.readlink(fd), (None, "0"))
            if address is not None:
                found.add((address, "store" if int(port, 16) == int(os.environ["MASTER_PORT"]) else "gloo"))
    except OSError:
        pass
if dist.get_rank() == 0:
    Path("listening.json").write_text(json.dumps([sorted(found), one.item()]))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(
    scope="module",
    params=[  # each launcher also starts in test_hostile_launchers.py
        pytest.param("deepspeed", marks=pytest.mark.slow),
        pytest.param("accelerate", marks=pytest.mark.slow),
        "torchrun",
    ],
)
def launched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hostile folder in which two ranks ran under a launcher."""
    pytest.importorskip("deepspeed")
    hostile = hostile_folder(tmp_path_factory.mktemp("launched"))
    script = hostile / "scripts" / "train.py"
    script.write_text(_SEEN + _LISTENING)
    (script.parent / "beside.py").write_text("")
    run_in(hostile, *MAIN, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none", "--no-plan",
        "--launcher", request.param, "--run-dir", "run", "scripts/train.py")  # fmt: skip
    return hostile


def test_launchers_and_ranks(launched: Path) -> None:
    """Ranks see the script's folder, as with ``python scripts/train.py``, and not the working folder."""
    for rank in (0, 1):
        paths, python_path = ast.literal_eval((launched / f"path-{rank}").read_text())
        assert paths[0] == str(launched / "scripts") and str(launched) not in paths and "/" not in paths
        assert python_path == os.environ.get("PYTHONPATH")


def test_on_one_machine_the_store_listens_on_the_loopback_address(launched: Path) -> None:
    """Whoever makes it: a rank, or torchrun's agent."""
    found, total = json.loads((launched / "listening.json").read_text())
    assert total == 2.0
    assert [address for address, of in found if of == "store"] == ["0100007F"]
    # Gloo's are at the address of the machine's name, never at every one.
    assert not [address for address, _ in found if set(address) == {"0"}], found
