"""TRL's own scripts, as its wheel has them, on two CPU ranks with a plan.

They are given data and a model, and nothing of the plan: that is what `zerokit launch` adds. One runs
everywhere; the rest with ``-m slow``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.corpus_scripts.rankside import ANSWER, answer, trainers
from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.tinyjob import make_model, make_rows, preferences, prompts, texts
from zerokit.cli import run as zerokit

needs("deepspeed")
needs("datasets")
needs("trl")
ROOT = Path(__file__).parents[2]
LORA = ("--use_peft", "--lora_r", "8", "--lora_target_modules", "q_proj", "v_proj")
GENERATES = (
    "--reward_funcs",
    "think_format_reward",
    "--num_generations",
    "2",
    "--max_completion_length",
    "8",
)


@dataclass(frozen=True)
class Case:
    """One script with its data; ``kind``: how what it saves is loaded."""

    name: str
    rows: Callable[[], list[dict[str, object]]]
    arguments: tuple[str, ...] = ()
    stage: int = 2
    kind: str = "AutoModelForCausalLM"


CASES = {
    "sft": Case("sft", texts, ("--max_length", "32"), stage=3),
    "sft with adapters": Case("sft", texts, ("--max_length", "32", *LORA), kind="adapters"),
    "sft packed": Case("sft", texts, ("--max_length", "32", "--packing"), stage=3),
    "dpo": Case("dpo", preferences, ("--max_length", "256")),
    "dpo with adapters": Case("dpo", preferences, ("--max_length", "256", *LORA), kind="adapters"),
    "kto": Case("kto", preferences, ("--max_length", "256")),
    "reward": Case("reward", preferences, ("--max_length", "256"), stage=3,
                   kind="AutoModelForSequenceClassification"),
    "grpo": Case("grpo", prompts, GENERATES, stage=3),
    "grpo rehearsed": Case("grpo", prompts, GENERATES),
    "rloo": Case("rloo", prompts, GENERATES),
}  # fmt: skip
GENERATE = ("grpo", "rloo")
REHEARSED = ("kto", "grpo rehearsed")
"""A reference model and generation, which no option of a plan says: a rehearsal predicts these runs."""
IN_CI = ("grpo",)  # it generates, and has ZeRO-3, whose weights a save gathers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


def launch(folder: Path, model: Path, case: Case, *, rehearsed: bool) -> Run:
    plan = ["plan", "--params", "1m", "--device", "cpu", "--gpus", "2", "--zero", str(case.stage),
            "--precision", "fp32", "--micro-batch", "2", "--gradient-accumulation", "2", "--seq-len", "32",
            "--checkpointing", "none", "--out", str(folder / "plan")]  # fmt: skip
    assert zerokit(plan) == 0
    make_rows(folder / "data", case.rows())
    (folder / "model").symlink_to(model)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("import tests.corpus_scripts.rankside\n")
    seconds = "400" if rehearsed else "0"
    command = ["--plan", "plan", "--rehearsal-seconds", seconds, "trl", case.name,
               "--model_name_or_path", "model", "--dataset_name", "data", "--output_dir", "out",
               "--max_steps", "2", "--report_to", "none", "--logging_steps", "1", "--save_strategy", "no",
               "--use_cpu", *case.arguments]  # fmt: skip
    variables = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
                 "HF_HOME": str(folder / "cache"), "PYTHONPATH": f"{folder / 'site'}:{ROOT}"}  # fmt: skip
    return Run(Path(sys.executable), folder, command, variables)


def load(folder: Path, kind: str) -> Any:
    import peft
    import transformers

    if kind == "adapters":
        base = transformers.AutoModelForCausalLM.from_pretrained(folder.parent / "model")
        return peft.PeftModel.from_pretrained(base, folder)
    return getattr(transformers, kind).from_pretrained(folder)


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_script_gets_the_plan_and_what_it_saves_loads_again(tmp_path: Path, model: Path, name: str) -> None:
    case = CASES[name]
    run = launch(tmp_path, model, case, rehearsed=name in REHEARSED)
    code, out, err = run.end(500)
    assert code == 0, out + err
    given = "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"
    assert f"added from the plan: {given}" in err and "--bf16 False" in err
    report = run.report()
    assert report["outcome"] == "ok" and len(report["ranks"]) == 2
    for rank in report["ranks"]:
        assert (rank["state"], rank["exit_code"], rank["steps"]) == ("finished", 0, 2)
        engine = rank["engine"]
        assert (engine["zero_stage"], engine["micro_batch"]) == (case.stage, 2)
        assert engine["gradient_accumulation"] == 2 and not engine["gradient_checkpointing"]
        phases = {"load", "init", "forward", "backward", "step", "save"}
        assert phases | ({"generate"} if case.name in GENERATE else set()) <= set(rank["phases"])
        assert rank["peak_phase"] != "other"
    if name in REHEARSED:
        compared = report["predicted_vs_measured"]
        assert (compared["predicted_for"], compared["predicted_by"]) == ("what ran", "rehearsal"), compared
        assert abs(compared["peak_bytes"]["error_fraction"]) < 0.25  # mostly the process itself
    assert trainers(tmp_path) == ["0", "1"]  # with four GPUs to be seen: no launcher within the launch
    saved = load(tmp_path / "out", case.kind).eval()
    assert answer(saved) == pytest.approx(json.loads((tmp_path / ANSWER).read_text()), rel=1e-5)
