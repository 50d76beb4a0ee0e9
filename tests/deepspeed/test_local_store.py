"""On one machine torch's store listens on the loopback address alone, whoever makes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
ROOT = Path(__file__).parents[2]
_SCRIPT = """
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


@pytest.mark.parametrize(
    "launcher", ["deepspeed", pytest.param("accelerate", marks=pytest.mark.slow), "torchrun"]
)
def test_the_store_listens_on_the_loopback_address(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    main = f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import main; main()"
    command = [sys.executable, "-c", main, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none",
               "--launcher", launcher, "--run-dir", "run", "train.py"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found, total = json.loads((tmp_path / "listening.json").read_text())
    assert total == 2.0
    assert [address for address, of in found if of == "store"] == ["0100007F"]
    # Gloo's are at the address of the machine's name, never at every one.
    assert not [address for address, _ in found if set(address) == {"0"}], found
