"""Plans and rehearsals of few layers beside rehearsals of all: peak, smallest card and step of TRL's sft.py.

    python -m benchmarks.rehearsal_depth [NAME …] [--jsonl OUT]

Each job is planned with its script, in one strategy, and its plan's folder is then rehearsed with all layers;
those without a strategy are rehearsed without DeepSpeed, as the command does it and with all layers.
The exit code is 1 where a peak is more than 0.05 % off, or where a model whose layers differ was planned with
few of them. A job takes minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.inputs import Inputs
from zerokit.catalog import models

BAR = 0.0005
LORA = ("--use_peft", "--lora_r", "16", "--lora_target_modules", "all-linear")
PACKED = ("--packing", "True", "--packing_strategy", "wrapped", "--per_device_train_batch_size", "2")
"""Rows of one length: of unlike ones each depth may see other peaks, and all layers are rehearsed."""
JOBS: dict[str, tuple[str, int, str, tuple[str, ...]]] = {
    "1b.z0": ("llama-3.2-1b", 1, "--zero 0 --micro-batch 2 --checkpointing none", ()),
    "1b.z1.checkpointed": ("llama-3.2-1b", 2, "--zero 1 --micro-batch 4 --checkpointing full", ()),
    "1b.z2.offload": ("llama-3.2-1b", 4, "--zero 2 --offload-optimizer cpu --micro-batch 1", ()),
    "1b.z3": ("llama-3.2-1b", 8, "--zero 3 --micro-batch 1 --checkpointing none", ()),
    "1b.z3.offload": ("llama-3.2-1b", 4, "--zero 3 --offload-param cpu --micro-batch 1", ()),
    "qwen.z2.lora": ("qwen2.5-1.5b", 2, "--zero 2 --micro-batch 2 --checkpointing none", LORA),
    "qwen.z3.lora": ("qwen2.5-1.5b", 4, "--zero 3 --micro-batch 1 --checkpointing full", LORA),
    "qwen3.z3.checkpointed": ("qwen3-0.6b", 4, "--zero 3 --micro-batch 4 --checkpointing full", ()),
    "gpt2.z2": ("gpt2-medium", 2, "--zero 2 --micro-batch 2 --checkpointing none", ()),
    "mixed.gemma2": ("gemma-2-2b", 4, "--zero 3 --micro-batch 1 --checkpointing full", ()),
    "mixed.smollm3": ("smollm3-3b", 8, "--zero 3 --micro-batch 1 --checkpointing full", ()),
    "qwen3.alone": ("qwen3-0.6b", 1, "", PACKED),
    "qwen.alone.lora": ("qwen2.5-1.5b", 1, "", (*PACKED, *LORA, "--gradient_checkpointing", "False")),
    "3b.alone.lora": ("llama-3.2-3b", 1, "", (*PACKED, *LORA)),
    "mixed.alone.gemma2": ("gemma-2-2b", 1, "", LORA),
    "mixed.lfm2": ("lfm2-350m", 2, "--zero 2 --micro-batch 1 --checkpointing none", ()),
}
"""(model, GPUs, the plan's strategy, the script's own arguments). ``mixed``: whose layers differ."""


def zerokit(folder: Path, *words: str) -> dict[str, Any]:
    """What a command prints as JSON; ends the benchmark where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compared(name: str, folder: Path, inputs: Inputs) -> dict[str, Any]:
    """One job, planned with few layers and rehearsed with all."""
    model, gpus, strategy, own = JOBS[name]
    length = 1024 if model.startswith("gpt2") else 2048
    script = f"""-m trl.scripts.sft --model_name_or_path {inputs.model(dict(models.load(model).hf_config))}
        --dtype bfloat16 --dataset_name {inputs.folder / "sft"} --output_dir {folder / "out"}
        --max_length {length} --bf16 True --report_to none""".split()
    if not strategy:
        few, whole = (
            zerokit(folder, "rehearse", "--json", "--gpu", "h200", *words, *script, *own)
            for words in ((), ("--whole",))
        )
        layers = None if few["depth"] == "whole" else [few["depth"]["layers"], few["depth"]["of"]]
        return {
            "job": name, "layers": layers, "planned": _figures(few), "rehearsed": _figures(whole),
            "versions": whole["versions"],
        }  # fmt: skip
    plan = zerokit(
        folder, "plan", "--json", "--gpus", str(gpus), "--gpu", "h200", *strategy.split(),
        "--gradient-accumulation", "1", "--out", str(folder / name), "--", *script, *own,
    )  # fmt: skip
    whole = zerokit(folder, "rehearse", "--json", "--whole", "--plan", str(folder / name), *script, *own)
    estimate, pairs = plan["chosen"]["estimate"], _figures(whole)
    return {
        "job": name,
        "layers": [one["layers"] for one in plan["rehearsals"] if one["stopped"] is None][-1],
        "planned": {key: estimate[key] for key in pairs},
        "rehearsed": pairs,
        "versions": whole["versions"],
    }


def _figures(done: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a rehearsal."""
    return {
        "peak_allocated_bytes": done["ranks"][0]["peak_allocated_bytes"],
        "min_vram_bytes": done["min_vram_bytes"],
        "step_seconds": done["step_seconds"],
    }


def main() -> int:
    """Print a line for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(JOBS)}; all if none is named")
    parser.add_argument("--jsonl", type=Path, help="append a line for each job")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
        inputs = Inputs(Path(folder) / "inputs")
        for name in options.names or JOBS:
            row = compared(name, Path(folder), inputs)
            off = {key: row["planned"][key] / value - 1 for key, value in row["rehearsed"].items()}
            failed |= abs(off["peak_allocated_bytes"]) > BAR
            failed |= name.startswith("mixed") and row["layers"] is not None
            of = "all layers" if row["layers"] is None else "{} of {} layers".format(*row["layers"])
            print(
                f"{name}: {of}; " + ", ".join(f"{key} {share:+.3%}" for key, share in off.items()), flush=True
            )
            if options.jsonl:
                with options.jsonl.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
