"""Does the launcher report what the script's own process would read? TRL's scripts, with and without it.

Each case is a script of TRL's wheel, unmodified. It runs twice on the same GPUs with the same arguments
and the same DeepSpeed configuration: once as ``zerokit launch --plan`` runs it, and once without zerokit,
where a ``sitecustomize`` of a few lines reads ``torch.cuda.max_memory_allocated`` when the process ends.
Since zerokit's probe wraps that function, a reading inside the launched process would prove nothing.

A row: the case, both peaks by rank in bytes, the phases that the launcher reported, and what failed.
Needs a CUDA GPU, TRL and datasets; the models (random weights) and the data are made here.
``tests/gpu/test_public_scripts_gpu.py`` runs them.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zerokit
from zerokit.errors import ZerokitError

READ_PEAK = """
import atexit, json, os, sys
def _read():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        path = os.environ["READ_PEAK_TO"] + "." + os.environ.get("RANK", "0")
        with open(path, "w") as file:
            json.dump({"allocated": torch.cuda.max_memory_allocated(),
                       "reserved": torch.cuda.max_memory_reserved()}, file)
if "READ_PEAK_TO" in os.environ:
    atexit.register(_read)
"""
SHAPE = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
LORA = ("--use_peft", "--lora_r", "16", "--lora_target_modules", "all-linear")
LENGTH = ("--max_length", "1024")
GENERATION = (
    "--num_generations", "4", "--max_completion_length", "64",
    "--reward_funcs", "get_soft_overlong_punishment",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script of ``trl/scripts``, its own arguments, and the strategy to plan."""

    name: str
    script: str
    data: str
    arguments: tuple[str, ...] = ()
    zero: int = 2
    micro_batch: int = 4
    accumulation: int = 1
    method: str = "full"
    checkpointing: str = "none"


CASES = (
    Case(name="sft", script="sft", data="sft", arguments=LENGTH),
    Case(name="sft.z0", script="sft", data="sft", arguments=LENGTH, zero=0),
    Case(name="sft.z3", script="sft", data="sft", arguments=LENGTH, zero=3),
    Case(name="sft.lora", script="sft", data="sft", arguments=(*LENGTH, *LORA), method="lora"),
    Case(name="sft.lora.z3", script="sft", data="sft", arguments=(*LENGTH, *LORA), method="lora", zero=3),
    Case(name="sft.packing", script="sft", data="short", arguments=(*LENGTH, "--packing", "True")),
    Case(
        name="sft.eval", script="sft", data="sft",
        arguments=(*LENGTH, "--eval_strategy", "steps", "--eval_steps", "2"),
    ),
    Case(name="sft.accumulation", script="sft", data="sft", arguments=LENGTH, micro_batch=2, accumulation=2),
    Case(name="sft.checkpointing", script="sft", data="sft", arguments=LENGTH, checkpointing="full"),
    Case(name="sft.liger", script="sft", data="sft", arguments=(*LENGTH, "--use_liger_kernel", "True")),
    Case(name="dpo", script="dpo", data="dpo", arguments=LENGTH, micro_batch=2),
    Case(name="dpo.z3", script="dpo", data="dpo", arguments=LENGTH, micro_batch=2, zero=3),
    Case(name="kto", script="kto", data="kto", arguments=LENGTH),
    Case(name="reward", script="reward", data="dpo", arguments=LENGTH),
    Case(name="grpo", script="grpo", data="prompts", arguments=GENERATION),
    Case(name="rloo", script="rloo", data="prompts", arguments=GENERATION),
)  # fmt: skip


def make_inputs(folder: Path, shape: dict[str, Any]) -> None:
    """A model with random weights and a tokenizer of 204 words, and the data sets."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", "<pad>", *(f"w{i}" for i in range(200))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder / "model")
    config = AutoConfig.for_model(**shape)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 3
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "model")

    draw = random.Random(0)

    def text(count: int) -> str:
        return " ".join(f"w{draw.randrange(200)}" for _ in range(count))

    rows = {
        "sft": lambda i: {"text": text(1500)},
        "short": lambda i: {"text": text(draw.randrange(100, 600))},
        "dpo": lambda i: {"prompt": text(200) + " ", "chosen": text(700), "rejected": text(700)},
        "kto": lambda i: {"prompt": text(200) + " ", "completion": text(700), "label": i % 2 == 0},
        "prompts": lambda i: {"prompt": text(100)},
    }
    for name, row in rows.items():
        (folder / name).mkdir()
        for split, count in (("train", 64), ("test", 16)):
            lines = (json.dumps(row(i)) + "\n" for i in range(count))
            (folder / name / f"{split}.jsonl").write_text("".join(lines))
    (folder / "peak").mkdir()
    (folder / "peak" / "sitecustomize.py").write_text(READ_PEAK)


def run(argv: list[str], log: Path, env: dict[str, str]) -> int:
    """The exit status; output goes to ``log``."""
    with log.open("w") as file:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=env, check=False
        ).returncode


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _write_plan(case: Case, folder: Path, work: Path, gpus: int) -> None:
    """Plans exactly the case, whatever would be faster."""
    zerokit.plan(
        model=folder / "model", gpus=gpus, gpu="h200", seq_len=1024, zero=case.zero,
        micro_batch=case.micro_batch, global_batch=case.micro_batch * case.accumulation * gpus,
        method=case.method, checkpointing=case.checkpointing, offload_optimizer="none",
        offload_param="none", lora_rank=16 if case.method == "lora" else None, out=work / "plan",
    )  # fmt: skip


def _figures(rank: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of one rank in a run's report."""
    return {
        "allocated": rank["peak_allocated_bytes"],
        "reserved": rank["peak_reserved_bytes"],
        "phases": rank["phases"],
        "steps": rank["steps"],
        "predicted": rank["predicted_peak_allocated_bytes"],
    }


def measure(case: Case, folder: Path, visible: list[str]) -> dict[str, Any]:
    """Run a case with and without zerokit on these GPUs."""
    work = folder / "runs" / case.name
    work.mkdir(parents=True)
    env = dict(os.environ) | {
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    row: dict[str, Any] = {**asdict(case), "gpus": len(visible), "problems": []}
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    script = str(Path(spec.origin).parent / "scripts" / f"{case.script}.py")
    try:
        _write_plan(case, folder, work, len(visible))
    except ZerokitError as error:
        row["problems"].append(str(error)[-600:])
        return row
    arguments = [
        "--dataset_name", str(folder / case.data), "--model_name_or_path", str(folder / "model"),
        "--output_dir", str(work / "out"), "--max_steps", "4", "--logging_steps", "1", "--report_to", "none",
        "--dtype", "bfloat16", "--save_strategy", "no", *case.arguments,
        "--per_device_train_batch_size", str(case.micro_batch),
        "--gradient_accumulation_steps", str(case.accumulation), "--bf16", "True",
        "--gradient_checkpointing", str(case.checkpointing == "full"),
    ]  # fmt: skip
    run_dir = work / "run"
    launch = [
        sys.executable, "-m", "zerokit", "launch", "--plan", str(work / "plan"), "--device", "cuda",
        "--run-dir", str(run_dir), "--heartbeat", "0", script, *arguments,
    ]  # fmt: skip
    started = time.monotonic()
    row["exit_code"] = run(launch, work / "launch.log", env)
    row["launch_seconds"] = round(time.monotonic() - started, 1)
    if row["exit_code"] or not (run_dir / "report.json").is_file():
        row["problems"].append((work / "launch.log").read_text()[-1500:])
    if not (run_dir / "command.json").is_file():
        return row
    if (run_dir / "report.json").is_file():
        report = json.loads((run_dir / "report.json").read_text())
        row["outcome"] = report["outcome"]
        row["launched"] = [_figures(rank) for rank in report["ranks"]]
    row["alone"] = run_alone(work, len(visible), env, folder / "peak")
    pairs = zip(row.get("launched", []), row["alone"], strict=False)
    row["equal"] = bool(row["alone"]) and all(a["allocated"] == b.get("allocated") for a, b in pairs)
    return row


def run_alone(work: Path, ranks: int, env: dict[str, str], peak: Path) -> list[dict[str, Any]]:
    """The command that the launcher recorded, without the launcher: one process a rank."""
    command = json.loads((work / "run" / "command.json").read_text())
    shutil.rmtree(work / "cache", ignore_errors=True)
    own = {k: v for k, v in command["environment"].items() if not k.startswith("ZEROKIT_")}
    argv = command["argv"]
    script = argv.index("--", 1) + 1
    port = str(free_port())
    with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        jobs = []
        for rank in range(ranks):
            variables = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "READ_PEAK_TO": str(work / "peak"),
                "PYTHONPATH": os.pathsep.join([str(peak), *env.get("PYTHONPATH", "").split(os.pathsep)]),
            }  # fmt: skip
            if own.get("CUDA_VISIBLE_DEVICES") != "":
                own.pop("CUDA_VISIBLE_DEVICES", None)
            alone = [sys.executable, *argv[script:]]
            jobs.append(pool.submit(run, alone, work / f"alone-{rank}.log", env | own | variables))
        codes = [job.result() for job in jobs]
    ranks_read = []
    for rank, code in enumerate(codes):
        path = work / f"peak.{rank}"
        values = json.loads(path.read_text()) if path.is_file() else {}
        if code or not values:
            values |= {"exit_code": code, "log": (work / f"alone-{rank}.log").read_text()[-1500:]}
        ranks_read.append(values)
    return ranks_read
