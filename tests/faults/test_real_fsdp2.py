"""``zerokit launch`` with a plan for FSDP2 on two CPU ranks, which real Accelerate starts.

Accelerate gives CPU ranks no FSDP: scripts that are to be divided tell it that they are GPUs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.fsdp2_plans import write_fsdp2_plan
from tests.support.packages import needs

needs("accelerate")
needs("transformers")
SCRIPTS = Path(__file__).parents[1] / "scripts"
AS_GPUS = (
    "from accelerate.state import PartialState\n"
    "from accelerate.utils import DistributedType\n"
    "PartialState(cpu=True)\n"
    'PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU\n'
)
TRAINER = (
    "import torch\n"
    "from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments\n"
    "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    "model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, "
    "num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2))\n"
    "row = torch.arange(8)\n"
    'data = [{"input_ids": row, "labels": row} for _ in range(16)]\n'
    "Trainer(model=model, args=args, train_dataset=data).train()\n"
)


def launch(folder: Path, script: str, *arguments: str) -> Run:
    write_fsdp2_plan(folder / "plan", reshard_after_forward=False)
    return Run(Path(sys.executable), folder, ["--plan", "plan", script, *arguments], {})


@pytest.mark.slow  # 25 s
@pytest.mark.parametrize("style", ["accelerate", "trainer"])
def test_it_trains_divided_as_planned(tmp_path: Path, style: str) -> None:
    (tmp_path / "trains.py").write_text(TRAINER.replace("Trainer(model", f"{AS_GPUS}Trainer(model"))
    arguments = ("trains.py", "--output_dir", "out", "--max_steps", "2", "--save_strategy", "no")
    accelerated = (str(SCRIPTS / "fsdp2_accelerated.py"),)
    run = launch(tmp_path, *(arguments if style == "trainer" else accelerated))
    code, out, err = run.end(240)
    report = run.report()
    assert (code, report["outcome"]) == (0, "ok"), out + err
    assert [(rank["state"], rank["steps"]) for rank in report["ranks"]] == [("finished", 2)] * 2
    for rank in report["ranks"]:
        engine = rank["engine"]
        assert (engine["engine"], engine["sharding"], engine["precision"]) == ("fsdp2", 2, "bf16")
        assert (engine["reshard_after_forward"], engine["batch_rows"]) == (False, 2)
        assert {"forward", "backward", "step"} <= rank["phases"].keys()
    assert report["predicted_vs_measured"]["differences"] == []
    assert not run.left() and not (run.run_dir / "ds_config.json").exists()


@pytest.mark.slow  # 17 s
def test_a_run_that_nothing_divides_is_not_the_plans(tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(TRAINER)
    run = launch(tmp_path, "trains.py", "--output_dir", "out", "--max_steps", "2", "--save_strategy", "no")
    code, out, err = run.end(240)
    assert code == 9, out + err
    assert "not as planned: FSDP2 divided nothing" in err
    assert [rank["steps"] for rank in run.report()["ranks"]] == [2, 2]
