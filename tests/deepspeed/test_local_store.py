"""On one machine torch's store listens on the loopback address alone."""

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
port = int(os.environ["MASTER_PORT"])
found = []
for table in ("tcp", "tcp6"):
    for line in Path("/proc/net", table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
            found.append(fields[1].rsplit(":", 1)[0])
if dist.get_rank() == 0:
    Path("listening.json").write_text(json.dumps([found, one.item()]))
dist.barrier()
dist.destroy_process_group()
"""


def test_the_store_listens_on_the_loopback_address(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    main = f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import main; main()"
    command = [sys.executable, "-c", main, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none",
               "--run-dir", "run", "train.py"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "listening.json").read_text()) == [["0100007F"], 2.0]
