"""``--resume`` on GPUs: two, then one, then two again, as if the run had never been interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import zerokit
from tests.support.resumed_runs import ARGUMENTS, EVERY, SHAPE, Trained, close

pytestmark = pytest.mark.gpu


class OnGpus(Trained):
    """Its plan is of two GPUs of this machine, in fp32; ``stage``: None is FSDP2."""

    def __init__(self, folder: Path, stage: int | None) -> None:
        self.folder, self.own = folder, False
        self.environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        (folder / "config.json").write_text(json.dumps(SHAPE))
        engine = {"engine": "fsdp2"} if stage is None else {"zero": str(stage)}
        job = {"seq_len": 32, "global_batch": 8, "micro_batch": 2, "precision": "fp32"}
        zerokit.plan(
            model=str(folder / "config.json"), gpus=2, gpu="h200", out=folder / "plan", **engine, **job
        )

    def launch(self, *options: str, arguments: tuple[str, ...] = ARGUMENTS) -> tuple[int, str, str]:
        return super().launch("--device", "cuda", *options, arguments=arguments)


@pytest.mark.parametrize("stage", [1, 2, 3, None])
def test_two_one_two(tmp_path: Path, stage: int | None) -> None:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    if listed.count("GPU ") < 2:
        pytest.skip("needs 2 GPUs")
    trained = OnGpus(tmp_path, stage)
    whole = trained.losses("first", 2)
    trained.interrupted_at(EVERY)
    assert close(trained.losses("second", 1, "--resume", "first"), whole)
    trained.interrupted_at(2 * EVERY)
    assert close(trained.losses("third", 2, "--resume", "second"), whole)
