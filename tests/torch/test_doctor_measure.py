"""``zerokit doctor --measure`` with two real CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerokit.machine import measured


@pytest.mark.slow
def test_two_cpu_ranks_measure_for_real_and_the_command_keeps_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # no compiler on the PATH: torch's own Adam is measured, and nothing is compiled
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PATH": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment["TORCH_EXTENSIONS_DIR"] = str(tmp_path / "extensions")
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "doctor", "--measure", "--json"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["measured"]
    assert (answer["device"], answer["ranks"], answer["cpu_adam_kind"]) == ("cpu", 2, "torch")
    assert 1e9 < answer["matmul_flops"] < 1e14
    assert 1e8 < answer["memory_copy_bytes_per_second"] < 1e13
    assert 1e6 < answer["cpu_adam_parameters_per_second"] < 1e12
    assert 1e8 < answer["host_memory_bytes_per_second"] < 1e13
    assert {point["operation"] for point in answer["collectives"]} == {"all_reduce"}
    kept, reason = measured.load(measured.path(environment))
    assert kept is not None and json.loads(json.dumps(kept.as_dict())) == answer
    assert str(tmp_path) in reason
