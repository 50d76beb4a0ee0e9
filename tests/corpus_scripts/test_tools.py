"""``llamafactory-cli train`` and ``axolotl train``, unmodified, on two CPU ranks with a plan.

Each runs in an environment of its own, with the versions that its wheel asks for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.corpus_scripts.environments import python_with
from tests.corpus_scripts.rankside import ANSWER, answer, trainers
from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.tinyjob import make_model
from zerokit.cli import run as zerokit

needs("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool with the file that it trains from."""

    name: str
    requirements: tuple[str, ...]
    words: tuple[str, ...]
    file: dict[str, object]
    said: str
    data: dict[str, object] = field(default_factory=dict)
    stage: int = 3


LLAMAFACTORY = Tool(
    name="llamafactory", requirements=("llamafactory==0.9.5",), words=("llamafactory-cli", "train"),
    file={
        "model_name_or_path": "model", "stage": "sft", "do_train": True, "finetuning_type": "full",
        "dataset_dir": ".", "dataset": "rows", "template": "default", "cutoff_len": 32, "output_dir": "out",
        "max_steps": 2, "report_to": "none", "save_strategy": "no", "preprocessing_num_workers": 1,
    },
    said="added from the plan: per_device_train_batch_size=2 gradient_accumulation_steps=2 "
         "disable_gradient_checkpointing=True",
    data={"rows": {"file_name": "rows.json"}},
)  # fmt: skip
AXOLOTL = Tool(
    name="axolotl", requirements=("axolotl==0.19.0", "deepspeed==0.18.9"), words=("axolotl", "train"),
    file={
        "base_model": "model",
        "datasets": [{"path": "rows.json", "ds_type": "json", "type": "completion", "field": "output"}],
        "dataset_prepared_path": "prepared", "val_set_size": 0, "output_dir": "out", "sequence_len": 32,
        "micro_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2, "learning_rate": 1e-4,
        "optimizer": "adamw_torch", "bf16": False, "fp16": False, "tf32": False, "save_strategy": "no",
        "special_tokens": {"pad_token": "<pad>"},
    },
    said="-m axolotl.cli.train in each rank; its own launcher is left out",
)  # fmt: skip


@pytest.mark.parametrize("tool", [LLAMAFACTORY, AXOLOTL], ids=lambda tool: tool.name)
def test_a_tool_trains_as_planned_in_two_processes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, tool: Tool
) -> None:
    python = python_with(tmp_path_factory.mktemp("environments"), tool.name, *tool.requirements)
    plan = ["plan", "--params", "1m", "--device", "cpu", "--gpus", "2", "--zero", str(tool.stage),
            "--precision", "fp32", "--micro-batch", "2", "--gradient-accumulation", "2", "--seq-len", "32",
            "--checkpointing", "none", "--out", str(tmp_path / "plan")]  # fmt: skip
    assert zerokit(plan) == 0
    make_model(tmp_path / "model")
    rows = [{"instruction": f"question {n}?", "input": "", "output": "a good answer " * 3} for n in range(64)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text(json.dumps(tool.data))
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(tool.file))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import tests.corpus_scripts.rankside\n")
    variables = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
                 "HF_HOME": str(tmp_path / "cache"), "AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1",
                 "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}  # fmt: skip
    run = Run(python, tmp_path, ["--plan", "plan", *tool.words, "train.yaml"], variables)
    code, out, err = run.end(900)
    assert code == 0, out + err
    assert tool.said in err
    report = run.report()
    assert report["outcome"] == "ok" and len(report["ranks"]) == 2
    for rank in report["ranks"]:
        assert (rank["state"], rank["exit_code"], rank["steps"]) == ("finished", 0, 2)
        engine = rank["engine"]
        assert (engine["zero_stage"], engine["micro_batch"]) == (tool.stage, 2)
        assert engine["gradient_accumulation"] == 2 and not engine["gradient_checkpointing"]
        assert {"load", "init", "forward", "backward", "step", "save"} <= set(rank["phases"])
    assert trainers(tmp_path) == ["0", "1"]  # though four GPUs are to be seen

    import transformers

    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert answer(saved) == pytest.approx(json.loads((tmp_path / ANSWER).read_text()), rel=1e-5)
