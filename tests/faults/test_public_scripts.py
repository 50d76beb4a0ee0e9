"""TRL's own scripts, as its wheel has them, on two CPU ranks: what the probe sees of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.plans import write_plan
from tests.support.tinyjob import make_model, make_rows, preferences, prompts, texts

needs("deepspeed")
needs("datasets")
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


@pytest.mark.slow  # TRL's grpo runs in tests/corpus_scripts
def test_sft(tmp_path: Path, model: Path) -> None:
    make_rows(tmp_path / "data", texts())
    run = launch(
        tmp_path, model, "sft.py", "--max_length", "32", "--eval_strategy", "steps", "--eval_steps", "2"
    )
    for rank in ranks_of(run):
        assert (rank["steps"], rank["micro_steps"]) == (3, 3)
        counts = {name: phase["count"] for name, phase in rank["phase_details"].items()}
        assert (counts["load"], counts["init"]) == (1, 1)
        assert (counts["forward"], counts["backward"], counts["step"]) == (3, 3, 3)
        assert counts["eval"] == 2  # after the second step, and the last
        assert counts["save"] == 2  # the last checkpoint, and the script's save_model
        assert rank["peak_phase"] != "other"
        engine = rank["engine"]
        assert (engine["batch_rows"], engine["batch_columns"], engine["engines"]) == (2, 32, 1)
        assert (engine["precision"], engine["optimizer"]) == ("fp32", "AdamW")
        assert engine["trainable_parameters"] == engine["parameters"] > 100_000
    assert run.report()["predicted_vs_measured"]["predicted_for"] is None  # the plan has 2048 tokens


@pytest.mark.slow
def test_sft_with_adapters(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("peft")
    make_rows(tmp_path / "data", texts())
    ranks = ranks_of(launch(tmp_path, model, "sft.py", "--max_length", "32", "--use_peft", stage=3))
    assert 0 < ranks[0]["engine"]["trainable_parameters"] < 0.5 * ranks[0]["engine"]["parameters"]
    named = [difference["what"] for difference in differences_of(tmp_path)]
    assert "trained parameters" in named and "ZeRO stage" not in named


@pytest.mark.slow
def test_dpo_with_its_reference_model(tmp_path: Path, model: Path) -> None:
    make_rows(tmp_path / "data", preferences())
    run = launch(
        tmp_path, model, "dpo.py", "--max_length", "32", "--eval_strategy", "steps", "--eval_steps", "2"
    )
    for rank in ranks_of(run):
        counts = {name: phase["count"] for name, phase in rank["phase_details"].items()}
        assert (counts["init"], counts["forward"], counts["backward"], counts["save"]) == (2, 3, 3, 2)
        assert counts["eval"] == 3 + 2  # a reference pass in each step, and the evaluations
        assert rank["engine"]["zero_stage"] == 2  # of the model that trains, not of its reference
        assert rank["peak_phase"] != "other"
    texts_ = [difference["text"] for difference in differences_of(tmp_path)]
    pairs = "4 sequences ran in each micro-batch of 2 rows of data, not 1 of each row"
    assert pairs in texts_  # chosen and rejected together
    assert any("2 DeepSpeed engines ran" in text for text in texts_)


REWARD = """
def length(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]
"""


@pytest.mark.slow  # grpo runs in tests/corpus_scripts; this counts its phases
def test_grpo_generates(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rows(tmp_path / "data", prompts())
    (tmp_path / "tiny_rewards.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rewards = ("--reward_funcs", "tiny_rewards.length", "--num_generations", "2", "--beta", "0.1")
    run = launch(tmp_path, model, "grpo.py", *rewards, "--max_completion_length", "8")
    for rank in ranks_of(run):
        counts = {name: phase["count"] for name, phase in rank["phase_details"].items()}
        assert counts["generate"] == 3 and counts["forward"] == counts["backward"] == rank["micro_steps"] == 3
        assert counts["init"] == 2 and counts["eval"] >= 3 and counts["save"] >= 1
        assert rank["engine"]["zero_stage"] == 2
        assert rank["peak_phase"] != "other"


def differences_of(folder: Path) -> list[dict[str, Any]]:
    report = json.loads((folder / "run" / "report.json").read_text())
    found: list[dict[str, Any]] = report["predicted_vs_measured"]["differences"]
    return found


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


@pytest.mark.slow  # TRL's grpo, in tests/corpus_scripts, is hooked; tests/unit/instrument has the finders
@pytest.mark.parametrize(
    "first",
    [
        "from transformers import Trainer",
        "import datasets",
        "importlib.util.find_spec('deepspeed.runtime.engine')",
    ],
)
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
