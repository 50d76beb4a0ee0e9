"""What a rehearsal of a large model costs: full training through TRL's sft.py under ZeRO-3 on eight GPUs.

    python -m benchmarks.rehearsal_cost [llama-3.1-8b llama-3.1-70b] [--jsonl OUT]

It runs `zerokit rehearse --json` on sequences of 4,096 tokens, as rank 0 of eight H200s, and prints the CPU
seconds and the memory of the whole process beside the bars: 60 s for 8B, 4 minutes for 70B, 4 GiB. The exit
code is 1 where one is above its bar. Run it on a quiet machine: another load slows both cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.inputs import Inputs
from zerokit.catalog import models

BARS_SECONDS = {"llama-3.1-8b": 60, "llama-3.1-70b": 240}
BAR_BYTES = 4 * 2**30
ENGINE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def rehearsed(name: str, folder: Path) -> dict[str, Any]:
    """One rehearsal: what it took of CPU, wall time and memory (of the largest process), and its peak."""
    inputs = Inputs(folder / "inputs")
    config = dict(models.load(name).hf_config)
    engine = folder / "ds_config.json"
    engine.write_text(json.dumps(ENGINE))
    command = f"""{sys.executable} -m zerokit rehearse --json --no-cache --gpus 8 --gpu h200
        -m trl.scripts.sft
        --model_name_or_path {inputs.model(config)} --dtype bfloat16 --dataset_name {inputs.folder / "sft"}
        --output_dir {folder / "out"} --per_device_train_batch_size 1 --max_length 4096 --bf16 True
        --gradient_checkpointing True --report_to none --deepspeed {engine}""".split()
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    report = json.loads(done.stdout)
    return {
        "model": name,
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "wall_seconds": round(time.monotonic() - begun, 1),
        "memory_bytes": after.ru_maxrss * 1024,
        "peak_allocated_bytes": report["ranks"][0]["peak_allocated_bytes"],
        "versions": report["versions"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(BARS_SECONDS)}; all if none is named")
    parser.add_argument("--jsonl", type=Path, help="append a line for each model")
    options = parser.parse_args()
    if unknown := set(options.models) - set(BARS_SECONDS):
        parser.error(f"no bar is known for {', '.join(sorted(unknown))}")
    above = False
    for name in options.models or BARS_SECONDS:
        with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
            row = rehearsed(name, Path(folder))
        bar = BARS_SECONDS[name]
        above |= row["cpu_seconds"] > bar or row["memory_bytes"] > BAR_BYTES
        print(
            f"{name}: {row['cpu_seconds']} s of CPU (bar {bar}), {row['wall_seconds']} s of wall time, "
            f"{row['memory_bytes'] / 2**30:.2f} GiB (bar {BAR_BYTES / 2**30:.0f})",
            flush=True,
        )
        if options.jsonl:
            with options.jsonl.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
