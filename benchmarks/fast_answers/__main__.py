"""Is the fast answer the rehearsed one? A matrix of trainers, methods, models, checkpointing and stages.

    python -m benchmarks.fast_answers rehearse -o ROWS.jsonl [PART…]   # hours: the truth, a row a cell
    python -m benchmarks.fast_answers compare ROWS.jsonl               # minutes: estimates beside it

Every cell is one job on two simulated GPUs at reduced depth: a bare DeepSpeed loop and the Trainer
(``loop.py``), TRL's own scripts ``sft``, ``dpo`` and ``reward``, unmodified. ``rehearse`` runs it as rank 0;
``compare`` asks ``zerokit estimate`` for the same job without its script. QLoRA needs bitsandbytes. A cell is
right where its peak is within 2 % of the rehearsed one, or where the answer says that it counts another job.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.rehearsal.inputs import Inputs
from zerokit.errors import ZerokitError

LIMIT = 0.02
LENGTH, ROWS, RANKS = 512, 4, 2
DENSE = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32000,
    "max_position_embeddings": 8192,
}  # fmt: skip
EXPERTS = {
    **DENSE, "model_type": "qwen3_moe", "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 704,
}  # fmt: skip
MODELS = {"dense": DENSE, "moe": EXPERTS}
TRAINERS = ("trl-sft", "raw", "transformers", "trl-dpo", "trl-reward")
DROPOUT = {"dense": 0.05, "moe": 0.0}
"""What TRL's command line and most tutorials take; peft refuses any for experts held in one parameter."""


def cells() -> Iterator[dict[str, Any]]:
    """Every cell that exists: DeepSpeed partitions no 4-bit weights (ZeRO-3)."""
    for trainer, method, model, checkpointing, stage in itertools.product(
        TRAINERS, ("lora", "qlora", "full"), MODELS, (False, True), (0, 2, 3)
    ):
        if method == "qlora" and stage == 3:
            continue
        name = f"{trainer}.{method}.{model}.{'ck' if checkpointing else 'no'}.z{stage}"
        yield {"id": name, "trainer": trainer, "method": method, "model": model,
               "checkpointing": checkpointing, "stage": stage}  # fmt: skip


def deepspeed_config(stage: int, rate: float | str = 1e-5) -> dict[str, Any]:
    """The configuration of a cell; a Trainer insists on the learning rate of its own arguments."""
    return {
        "train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": rate}}, "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
    }  # fmt: skip


def command(cell: dict[str, Any], folder: Path, inputs: Inputs) -> list[str]:
    """The script of a cell and its arguments."""
    model = inputs.model(MODELS[cell["model"]])
    settings = folder / "ds.json"
    rate = 1e-5 if cell["trainer"] == "raw" else "auto"
    settings.write_text(json.dumps(deepspeed_config(cell["stage"], rate)))
    if cell["trainer"] in ("raw", "transformers"):
        job = {**cell, "model": str(model), "deepspeed": deepspeed_config(cell["stage"], rate), "rows": ROWS,
               "length": LENGTH, "steps": 5, "dropout": DROPOUT[cell["model"]],
               "output": str(folder / "out")}  # fmt: skip
        (folder / "job.json").write_text(json.dumps(job))
        return [str(Path(__file__).with_name("loop.py")), str(folder / "job.json")]
    script = cell["trainer"].removeprefix("trl-")
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    data = inputs.folder / "sft"
    if script != "sft":  # as long as a row may be, and nearly all of it an answer: what an estimate counts
        data = folder / "pairs"
        data.mkdir()
        answer = " ".join(f"w{number % 200}" for number in range(LENGTH - 2))
        line = json.dumps({"prompt": "w0 ", "chosen": answer, "rejected": answer}) + "\n"
        for split in ("train", "test"):
            (data / f"{split}.jsonl").write_text(line * 64)
    arguments = [
        str(Path(spec.origin).parent / "scripts" / f"{script}.py"),
        "--model_name_or_path", str(model), "--dataset_name", str(data), "--output_dir", str(folder / "out"),
        "--max_length", str(LENGTH), "--per_device_train_batch_size", str(ROWS), "--max_steps", "5",
        "--gradient_accumulation_steps", "1", "--dtype", "bfloat16", "--bf16", "True",
        "--gradient_checkpointing", str(cell["checkpointing"]), "--deepspeed", str(settings),
        "--report_to", "none", "--save_strategy", "no",
    ]  # fmt: skip
    if cell["method"] != "full":
        arguments += ["--use_peft", "--lora_r", "16", "--lora_target_modules", "all-linear",
                      "--lora_dropout", str(DROPOUT[cell["model"]])]  # fmt: skip
        arguments += ["--lora_task_type", "SEQ_CLS"] if script == "reward" else []
    if cell["method"] == "qlora":
        arguments += ["--load_in_4bit", "--use_bnb_nested_quant"]
    return arguments


def rehearse(cell: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The cell with its peaks in bytes, or why there are none."""
    with tempfile.TemporaryDirectory() as name:
        argv = command(cell, Path(name), inputs)
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", "rehearse", "--json", "-q", "--gpus", str(RANKS),
             "--gpu", "h200", "--launcher", "deepspeed", *argv],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        answer = json.loads(done.stdout)
        rank = answer["ranks"][0]
    except (json.JSONDecodeError, LookupError):
        return {**cell, "problem": done.stderr[-600:]}
    found = {"peak": rank["peak_allocated_bytes"], "phases": rank["phases"]}
    stopped = answer.get("stopped")
    return {**cell, **found, **({"problem": json.dumps(stopped)} if stopped else {})}


def estimate(cell: dict[str, Any], folder: Path) -> Any:
    """What ``zerokit estimate`` says of the cell's job without its script."""
    path = folder / "config.json"
    path.write_text(json.dumps(MODELS[cell["model"]]))
    settings = folder / "ds.json"
    settings.write_text(json.dumps(deepspeed_config(cell["stage"])))
    adapters = {} if cell["method"] == "full" else {"lora_dropout": DROPOUT[cell["model"]], "lora_rank": 16}
    return zerokit.estimate(
        model=path, gpus=RANKS, gpu="h200", seq_len=LENGTH, deepspeed=settings, method=cell["method"],
        trainer="trl" if cell["trainer"] == "trl-sft" else cell["trainer"],
        checkpointing="full" if cell["checkpointing"] else "none", **adapters,
    )  # fmt: skip


def compare(path: Path) -> int:
    """Print each cell; 1 where a fast answer is wrong without saying so."""
    errors, wrong = [], 0
    with tempfile.TemporaryDirectory() as name:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "problem" in row:
                print(f"{row['id']:36} not rehearsed: {row['problem'][-160:]!r}")
                continue
            try:
                answer = estimate(row, Path(name))
            except ZerokitError as error:
                print(f"{row['id']:36} no answer: {error}")
                continue
            difference = answer.peak_allocated_bytes / row["peak"] - 1
            errors.append(abs(difference))
            wrong += abs(difference) > LIMIT
            print(f"{row['id']:36} rehearsed {row['peak'] / 2**20:9.1f} MiB  {difference:+8.2%}", flush=True)
    print(f"{len(errors)} cells, median {statistics.median(errors):.2%}, worst {max(errors):.2%}, "
          f"{wrong} beyond {LIMIT:.0%}")  # fmt: skip
    return 1 if wrong else 0


def main() -> int:
    """Run either half."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("half", choices=("rehearse", "compare"))
    parser.add_argument("parts", nargs="*", help="of the names of cells; compare: the file of rows")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_intermixed_args()
    if options.half == "compare":
        return compare(Path(options.parts[0]))
    done = set()
    if options.output.exists():
        done = {json.loads(line)["id"] for line in options.output.read_text().splitlines()}
    with tempfile.TemporaryDirectory() as name, options.output.open("a") as file:
        inputs = Inputs(Path(name))
        for cell in cells():
            if cell["id"] in done or (options.parts and not any(p in cell["id"] for p in options.parts)):
                continue
            row = rehearse(cell, inputs)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(row["id"], row.get("peak"), row.get("problem", "")[-200:], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
