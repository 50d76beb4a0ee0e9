"""TRL's own scripts, as its wheel has them, on two CPU ranks: what the probe sees of them (issue: item 1)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Run
from tests.support.plans import write_plan
from tests.support.tinyjob import make_model, make_rows, texts

pytest.importorskip("deepspeed")
pytest.importorskip("datasets")
TRL = Path(pytest.importorskip("trl").__file__).parent / "scripts"
PYTHON = Path(sys.executable)
COMMON = (
    "--model_name_or_path", "model", "--dataset_name", "data", "--output_dir", "out", "--max_steps", "3",
    "--report_to", "none", "--use_cpu", "--bf16", "false", "--gradient_checkpointing", "false",
    "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1", "--logging_steps", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


def launch(folder: Path, model: Path, script: str, *arguments: str, stage: int = 2) -> Run:
    write_plan(folder / "plan", precision="fp32", stage=stage)
    (folder / "model").symlink_to(model)
    command = ["--plan", "plan", "--style", "trainer", str(TRL / script), *COMMON, *arguments]
    return Run(PYTHON, folder, command, {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})


def ranks_of(run: Run) -> list[dict[str, Any]]:
    code, out, err = run.end(300)
    assert code == 0, out + err
    report = run.report()
    assert report["outcome"] == "ok"
    assert [rank["state"] for rank in report["ranks"]] == ["finished"] * 2
    ranks: list[dict[str, Any]] = report["ranks"]
    return ranks


def test_sft(tmp_path: Path, model: Path) -> None:
    make_rows(tmp_path / "data", texts())
    run = launch(tmp_path, model, "sft.py", "--max_length", "32")
    for rank in ranks_of(run):
        assert (rank["steps"], rank["micro_steps"]) == (3, 3)
        counts = {name: phase["count"] for name, phase in rank["phase_details"].items()}
        assert (counts["forward"], counts["backward"], counts["step"]) == (3, 3, 3)
        assert (rank["engine"]["batch_rows"], rank["engine"]["batch_columns"]) == (2, 32)


IMPORTS = """
import importlib.util, sys
from zerokit.instrument.post_import import PostImport
hooked = []
PostImport(dict.fromkeys(
    ["torch", "deepspeed.runtime.engine", "deepspeed.runtime.pipe.engine", "deepspeed.comm.torch",
     "accelerate.state"], hooked.append)).install()
{first}
from trl import SFTTrainer, DPOTrainer, GRPOTrainer
import torch, deepspeed
from deepspeed.runtime.pipe.engine import PipelineEngine
names = [module.__name__ for module in hooked]
assert sorted(names) == sorted(set(names)), names
for module in hooked:
    assert sys.modules[module.__name__] is module
    assert type(module.__spec__.loader).__module__ != "zerokit.instrument.post_import"
print(sorted(names))
"""


@pytest.mark.parametrize("first", ["import datasets", "from transformers import Trainer",
                                   "importlib.util.find_spec('deepspeed.runtime.engine')"])  # fmt: skip
def test_what_trl_imports_first_hides_nothing_from_the_hooks(first: str) -> None:
    assert importlib.util.find_spec("trl")
    code = IMPORTS.format(first=first)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          check=False, env=None)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(
        ["accelerate.state", "deepspeed.comm.torch", "deepspeed.runtime.engine",
         "deepspeed.runtime.pipe.engine", "torch"]
    )  # fmt: skip
