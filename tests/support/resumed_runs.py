"""Runs that are interrupted and go on, as the tests of ``--resume`` make them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import zerokit
from tests.faults.conftest import Run
from tests.support.command import called

SCRIPTS = Path(__file__).parents[1] / "scripts"
BAR = 1e-3
SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
STEPS, EVERY = 9, 3
ARGUMENTS = (
    str(SCRIPTS / "resumes_trainer.py"), "--output_dir", "out", "--max_steps", str(STEPS), "--save_steps",
    str(EVERY), "--logging_steps", "1", "--learning_rate", "3e-3", "--report_to", "none", "--seed", "3",
    "--weight_decay", "0.9",
)  # fmt: skip


def plan(folder: Path, stage: int | None, ranks: int = 4, name: str = "plan") -> None:
    (folder / "config.json").write_text(json.dumps(SHAPE))
    device = {"gpu": "h200", "engine": "fsdp2"} if stage is None else {"device": "cpu", "zero": str(stage)}
    job = {"seq_len": 32, "global_batch": 8, "micro_batch": 2, "precision": "fp32"}
    zerokit.plan(model=str(folder / "config.json"), gpus=ranks, out=folder / name, **device, **job)


class Trained:
    """The folder of a plan and the runs made there; ``own``: of a DeepSpeed file without an optimizer, so
    that the Trainer's has two groups of parameters."""

    def __init__(self, folder: Path, stage: int | None, *, own: bool = False) -> None:
        self.folder, self.own = folder, own
        self.environment = {"AS_GPUS": "1"} if stage is None else {}
        if own:
            config = {"zero_optimization": {"stage": stage}, "gradient_clipping": "auto"}
            batch = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
            (folder / "own.json").write_text(json.dumps({**config, **batch}))
        else:
            plan(folder, stage)

    def launch(self, *options: str, arguments: tuple[str, ...] = ARGUMENTS) -> tuple[int, str, str]:
        run = Run(Path(sys.executable), self.folder, [*options, *arguments], self.environment)
        try:
            return run.end(300)
        finally:
            run.clean_up()

    def losses(self, name: str, ranks: int, *options: str) -> Mapping[int, float]:
        given, more = ("--plan", "plan"), ARGUMENTS
        if self.own:
            given = ("--deepspeed", "own.json")
            batch = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", str(4 // ranks))
            more = (*ARGUMENTS, *batch)
        options = ("--run-dir", name, "--num-ranks", str(ranks), *given, *options)
        code, out, err = self.launch(*options, arguments=more)
        assert code == 0, err
        line = next(line for line in out.splitlines() if line.startswith("losses "))
        return {int(step): loss for step, loss in json.loads(line.removeprefix("losses ")).items()}

    def weights(self, checkpoint: str) -> dict[str, list[float]]:
        """As ``zerokit weights`` writes them, and Transformers loads them."""
        from transformers import AutoModelForCausalLM

        code, out, err = called("weights", checkpoint, "--out", "model", folder=self.folder)
        assert code == 0, out + err
        model = AutoModelForCausalLM.from_pretrained(self.folder / "model")
        return {name: weight.flatten().tolist() for name, weight in model.named_parameters()}

    def interrupted_at(self, step: int) -> None:
        for later in range(step + EVERY, STEPS + 1, EVERY):
            shutil.rmtree(self.folder / "out" / f"checkpoint-{later}")


def close(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    return one.keys() == other.keys() and max(abs(one[step] - other[step]) for step in one) < BAR
