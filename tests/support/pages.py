"""The commands that the documentation's pages show, and folders that hold what a page takes for granted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.support.run_reports import ERROR, OOM, write_rank
from tests.support.snapshots import recorded
from tests.support.tinyjob import make_model, make_rows, preferences, texts
from zerokit.launcher.verdict.saved_run import load_run

ROOT = Path(__file__).resolve().parents[2]
SH_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s+# .*$")

ACCELERATED = """\
import argparse

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
accelerator = Accelerator()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=1)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
for _ in range(args.epochs):
    for row in rows:
        accelerator.backward(model(row).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""

TRAINER = """\
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Job:
    model: str = ""
    model_name_or_path: str = ""
    train_file: str = ""
    block_size: int = 64


job, training = HfArgumentParser((Job, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(job.model or job.model_name_or_path)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 512, (512, job.block_size))]
Trainer(model=model, args=training, train_dataset=rows).train()
"""

ACCELERATE_CONFIG = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 1
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
use_cpu: false
"""
"""What ``accelerate config`` writes for eight ranks with ZeRO-3."""
AXOLOTL = """\
base_model: Qwen/Qwen2.5-7B
adapter: qlora
load_in_4bit: true
sequence_len: 4096
sample_packing: true
lora_r: 16
lora_target_linear: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
"""


def sh_commands(text: str) -> list[str]:
    """Every command of a page's ``sh`` blocks, continued lines joined, comments left out."""
    lines = [line for block in SH_BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [" ".join(COMMENT.sub("", line).split()) for line in lines if line.strip()]


def lay_out(folder: Path, *, trainer: bool) -> None:
    """A checkout's examples, a script under the names that pages use, and somebody's accelerate config."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in ("train.py", "run_clm.py"):
        (folder / name).write_text(TRAINER if trainer or name == "run_clm.py" else ACCELERATED)
    (folder / "my.txt").write_text("some text\n")
    (folder / "default_config.yaml").write_text(ACCELERATE_CONFIG)
    (folder / "train.yaml").write_text(AXOLOTL)


def lay_out_hub(folder: Path) -> None:
    """Tiny models and data in folders with the names that the pages take from the Hub."""
    for name in ("DIR", "Qwen/Qwen2.5-1.5B", "meta-llama/Llama-3.1-8B"):
        make_model(folder / name)
    make_rows(folder / "data", texts())
    make_rows(folder / "trl-lib" / "ultrafeedback_binarized", preferences())


def lay_out_snapshots(folder: Path) -> None:
    """Memory snapshots that were recorded on a GPU, and a rehearsal of one phase of theirs."""
    for name, of in (("oom", "oom"), ("before", "plain"), ("after", "plain-long")):
        shutil.copy(recorded(of), folder / f"{name}.pickle")
    rehearsed = {
        "schema": "zerokit.rehearsal/1",
        "complete": True,
        "ranks": [{"phases": {"backward": 430 << 20}}],
    }
    (folder / "rehearsal.json").write_text(json.dumps(rehearsed))


def write_failed_run(run: Path, plan: Path) -> None:
    """A run that ran out of memory on rank 1, and the plan to try next, as ``launch`` leaves them."""
    run.mkdir(parents=True)
    shutil.copytree(plan, run / "next-plan")
    shutil.copy(plan / "plan.yaml", run)
    write_rank(run, 0)
    write_rank(run, 1, extra=[OOM, ERROR], state="failed", exit_code=1)
    body = load_run(run).to_dict()
    body["first_failure"]["next_plan"] = {"folder": "next-plan", "min_vram_bytes": 30 << 30, "why": "it fits"}
    (run / "report.json").write_text(json.dumps(body))
