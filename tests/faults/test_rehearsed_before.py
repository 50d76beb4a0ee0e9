"""A launch on GPUs is rehearsed before its start, unless its plan was: what does not fit is not started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs

needs("torch")

SCRIPT = """
import argparse, json, torch
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
parser.add_argument("--deepspeed_config", default=None)
asked = parser.parse_args()
width = asked.width
if asked.deepspeed_config:
    width *= json.load(open(asked.deepspeed_config))["train_micro_batch_size_per_gpu"]
if not torch.cuda.is_available():  # the launch itself, on a machine without GPUs
    print("started with", width)
    raise SystemExit
model = torch.nn.Linear(width, width, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.ones(1, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TOO_WIDE = 131_072
"""Four fp32 copies of so many weights squared are 256 GiB."""


class Launcher:
    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder
        smi = folder / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text("#!/bin/sh\necho '0, GPU-0, NVIDIA H200, 143771, 4, 580.95.05'\n")
        smi.chmod(0o755)
        (folder / "train.py").write_text(SCRIPT)
        self.environment = {
            "PATH": f"{smi.parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / "cache"),
        }  # fmt: skip

    def __call__(self, *options: str, width: int = 64) -> tuple[int, str, str]:
        words = ["--device", "cuda", "--rehearsal-seconds", "120", *options, "train.py", "--width"]
        run = Run(self._python, self._folder, [*words, str(width)], self.environment)
        try:
            return run.end(240)
        finally:
            run.clean_up()


@pytest.fixture
def launch(stub_python: Path, tmp_path: Path) -> Iterator[Launcher]:
    yield Launcher(stub_python, tmp_path)


def test_what_does_not_fit_is_not_started(launch: Launcher, tmp_path: Path) -> None:
    code, out, err = launch("--no-plan", width=TOO_WIDE)
    assert code == 3, err
    assert "started" not in out and not (tmp_path / "run").exists()
    assert "train.py does not fit: " in err and "required of the 140.40 GiB of h200" in err
    assert "zerokit plan --gpus 1 -- train.py --width 131072 plans for it" in err
    code, out, err = launch("--no-plan", "--no-rehearsal", width=TOO_WIDE)
    assert (code, "started with 131072" in out, "rehearsing" in err) == (0, True, False), err


@pytest.mark.slow
def test_both_figures_are_told_where_the_plan_is_another_scripts(launch: Launcher, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "plan", "--params", "1m", "--gpus", "1", "--gpu", "h200",
         "--micro-batch", "2048", "--seq-len", "64", "--out", "plan"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code, out, err = launch("--plan", "plan", "--style", "raw")  # 64 × 2,048
    assert code == 3, err
    (planned,) = (line for line in err.splitlines() if "its plan says" in line)
    assert "started" not in out and "does not fit: " in planned


def test_what_fits_is_started_and_the_next_time_not_rehearsed_again(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2}))
    code, out, err = launch("--deepspeed", "own.json", "--style", "raw")
    assert "started with 128" in out and code == 9, err  # no engine: the script is a stand-in
    assert "rehearsed: fits: " in err and "of the 140.40 GiB of h200" in err
    (tmp_path / "run").rename(tmp_path / "before")
    _, out, err = launch("--deepspeed", "own.json", "--style", "raw")
    assert "started with 128" in out and "rehearsed (kept 20" in err


@pytest.mark.slow
def test_what_takes_too_long_is_abandoned_and_cpu_ranks_are_never_rehearsed(
    launch: Launcher, tmp_path: Path
) -> None:
    code, out, err = launch("--no-plan", "--rehearsal-seconds", "0.5", width=TOO_WIDE)
    assert (code, "started with 131072" in out) == (0, True), err
    assert "the rehearsal was not done after 0.5 s: the launch starts" in err
    (tmp_path / "run").rename(tmp_path / "before")
    code, out, err = launch("--no-plan", "--device", "cpu", width=TOO_WIDE)
    assert (code, "started with 131072" in out, "rehearsing" in err) == (0, True, False), err
