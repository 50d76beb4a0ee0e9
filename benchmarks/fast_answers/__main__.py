"""Is the fast answer the rehearsed one? A matrix of trainers, methods, models, checkpointing and stages.

    python -m benchmarks.fast_answers rehearse -o ROWS.jsonl [PART…]   # hours: the truth, a row a cell
    python -m benchmarks.fast_answers compare [ROWS.jsonl]             # minutes: estimates beside it

Every cell is one job on two simulated GPUs at reduced depth: a bare DeepSpeed loop and the Trainer
(``loop.py``), TRL's own scripts ``sft``, ``dpo`` and ``reward``, unmodified, and what the commands of axolotl
0.19 and LLaMA-Factory 0.9.5 run (``loop.py``). ``rehearse`` runs it as rank 0, with Triton installed, which
TRL's losses ask for; ``compare`` asks ``zerokit estimate`` for the same job without its script and writes
the result into docs/accuracy.md. QLoRA needs bitsandbytes. LLaMA-Factory runs with its own pins
(Transformers 5.6, TRL 0.24, PEFT 0.18.1), and so does axolotl (5.16.1, 1.9, 0.20). A cell is
right where its peak is within 2 % of the rehearsed one, or more for what the answer names.

``measured.jsonl`` and ``at_the_limit.jsonl`` are runs on GPUs of plans made without their script, the second
on cards that have no more than the plan requires.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.common import options_of, rows
from benchmarks.fast_answers.section import COMPARED, LIMIT, error, replaced, spread
from benchmarks.rehearsal.inputs import Inputs

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
TOOLS = ("axolotl", "llamafactory")
TRAINERS = ("trl-sft", "raw", "transformers", "trl-dpo", "trl-reward", *TOOLS)
TARGETS = "q_proj,k_proj,v_proj,o_proj"
"""Adapted by the tools in a mixture, whose stacked experts their own ways of saying "all" leave out."""
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
    if cell["trainer"] in TOOLS:
        config = of_tool(cell, folder, model, settings)
        job = {"trainer": cell["trainer"], "output": str(folder / "out"), "config": config}
        (folder / "job.json").write_text(json.dumps(job))
        return [str(Path(__file__).with_name("loop.py")), str(folder / "job.json")]
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


def of_tool(cell: dict[str, Any], folder: Path, model: Path, settings: Path) -> dict[str, Any]:
    """What a tool's command reads, with rows as long as they may be and nearly all of each a target."""
    # axolotl makes another row of what is too long; the others cut it
    length = LENGTH - 1 if cell["trainer"] == "axolotl" else LENGTH + 8
    words = " ".join(f"w{number % 200}" for number in range(length))
    rows = [{"instruction": "w0", "input": "", "output": words, "text": words}] * 64
    (folder / "rows.json").write_text(json.dumps(rows))
    shared = {
        "output_dir": str(folder / "out"),
        "gradient_accumulation_steps": 1,
        "max_steps": 5,
        "learning_rate": 1e-5,
        "bf16": True,
        "save_strategy": "no",
        "deepspeed": str(settings),
    }
    moe, packed, dropout = cell["model"] == "moe", cell["method"] == "qlora", DROPOUT[cell["model"]]
    if cell["trainer"] == "axolotl":
        adapters = {
            "adapter": cell["method"], "lora_r": 16, "lora_alpha": 16, "lora_dropout": dropout,
            "load_in_4bit": packed,
            **({"lora_target_modules": TARGETS.split(",")} if moe else {"lora_target_linear": True}),
        }  # fmt: skip
        data = {"path": str(folder / "rows.json"), "ds_type": "json", "type": "completion"}
        return {
            **shared, "base_model": str(model), "datasets": [data], "sequence_len": LENGTH,
            "micro_batch_size": ROWS, "optimizer": "adamw_torch", "lr_scheduler": "constant",
            "gradient_checkpointing": cell["checkpointing"], "sdp_attention": True, "val_set_size": 0,
            "dataset_prepared_path": str(folder / "prepared"), "sample_packing": False,
            **({} if cell["method"] == "full" else adapters),
        }  # fmt: skip
    data = {"rows": {"file_name": "rows.json"}}
    (folder / "dataset_info.json").write_text(json.dumps(data))
    adapters = {"lora_rank": 16, "lora_target": TARGETS if moe else "all", "lora_dropout": dropout}
    return {
        **shared, "model_name_or_path": str(model), "stage": "sft", "do_train": True, "template": "default",
        "finetuning_type": "full" if cell["method"] == "full" else "lora", "dataset": "rows",
        "dataset_dir": str(folder), "cutoff_len": LENGTH, "per_device_train_batch_size": ROWS,
        "report_to": "none", "logging_steps": 1, "disable_gradient_checkpointing": not cell["checkpointing"],
        **({} if cell["method"] == "full" else adapters), **({"quantization_bit": 4} if packed else {}),
    }  # fmt: skip


def rehearse(cell: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The cell with its peaks in bytes, or why there are none."""
    with tempfile.TemporaryDirectory() as name:
        argv = command(cell, Path(name), inputs)
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", "rehearse", "--json", "-q", "--whole", "--gpus", str(RANKS),
             "--gpu", "h200", "--launcher", "deepspeed", *argv],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        answer = json.loads(done.stdout)
        rank = answer["ranks"][0]
    except (json.JSONDecodeError, LookupError):
        return {**cell, "problem": done.stderr[-600:]}
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    found = {"peak": rank["peak_allocated_bytes"], "phases": rank["phases"], "versions": versions}
    stopped = answer.get("stopped")
    return {**cell, **found, **({"problem": json.dumps(stopped)} if stopped else {})}


def estimate(cell: dict[str, Any], folder: Path) -> Any:
    """What ``zerokit estimate`` says of the cell's job without its script."""
    path = folder / "config.json"
    path.write_text(json.dumps(MODELS[cell["model"]]))
    settings = folder / "ds.json"
    settings.write_text(json.dumps(deepspeed_config(cell["stage"])))
    adapters: dict[str, Any] = {}
    if cell["method"] != "full":
        adapters = {"lora_dropout": DROPOUT[cell["model"]], "lora_rank": 16}
        if cell["trainer"] in TOOLS and cell["model"] == "moe":
            adapters["lora_targets"] = TARGETS
    return zerokit.estimate(
        model=path, gpus=RANKS, gpu="h200", seq_len=LENGTH, deepspeed=settings, method=cell["method"],
        trainer="trl" if cell["trainer"] == "trl-sft" else cell["trainer"],
        checkpointing="full" if cell["checkpointing"] else "none", **adapters,
    )  # fmt: skip


def compare(path: Path) -> int:
    """Print each cell, and write docs/accuracy.md's part on them; 1 where one is beyond the limit."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        order = {cell["id"]: number for number, cell in enumerate(cells())}
        for row in sorted(rows(path), key=lambda row: order[row["id"]]):
            if "problem" in row:
                print(f"{row['id']:36} not rehearsed: {row['problem'][-160:]!r}")
                continue
            answer = estimate(row, Path(name))
            kept = {key: row[key] for key in ("id", "trainer", "method", "peak", "versions")}
            peaks = {"estimated_peak": answer.peak_allocated_bytes, "required": answer.min_vram_bytes}
            found.append({**kept, **peaks})
            print(f"{row['id']:36} rehearsed {row['peak'] / 2**20:9.1f} MiB  {error(found[-1]):+8.2%}",
                  flush=True)  # fmt: skip
    COMPARED.write_text("".join(json.dumps(row) + "\n" for row in found))
    page = Path(__file__).parents[2] / "docs" / "accuracy.md"
    page.write_text(replaced(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(
        f"{len(found)} cells: median, largest error and those beyond {LIMIT:.0%}: {', '.join(spread(found))}"
    )
    return 1 if int(spread(found)[2]) else 0


def main() -> int:
    """Run either half."""
    parser = options_of(__doc__)
    parser.add_argument("half", choices=("rehearse", "compare"))
    parser.add_argument("parts", nargs="*", help="of the names of cells; compare: the file of rows")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_intermixed_args()
    if options.half == "compare":
        return compare(Path(*options.parts or [Path(__file__).with_name("rehearsed.jsonl")]))
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
