"""What the gate says of a trainer's commits, each held to the one before it.

    python -m benchmarks.rehearsal_gate CHECKOUT [--commits 50] [--jsonl OUT]

CHECKOUT is a clone of huggingface/trl. The last commits that touch its SFT trainer or its scripts are
rehearsed with `--baseline`, oldest first: full training of a Llama of 4 layers on one H200. Each growth is
printed; whether the commit meant it is for a person to say.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import append, options_of
from benchmarks.rehearsal.inputs import Inputs
from benchmarks.rehearsal_cost import Cost

PATHS = ("trl/trainer/sft_trainer.py", "trl/scripts")
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 1024,
    "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
}  # fmt: skip


def git(checkout: Path, *words: str) -> bytes:
    """What git prints."""
    return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, check=True).stdout


def rows(checkout: Path, commits: int, folder: Path) -> Iterator[dict[str, Any]]:
    """One for each commit, the first of which is only a baseline."""
    inputs, baseline = Inputs(folder / "inputs"), folder / "baseline.json"
    script = f"""-m trl.scripts.sft --model_name_or_path {inputs.model(MODEL)} --dtype bfloat16
        --dataset_name {inputs.folder / "sft"} --output_dir {folder / "out"} --report_to none --bf16 True
        --per_device_train_batch_size 2 --max_length 2048""".split()
    gate = f"-m zerokit rehearse --json --no-cache --gpu h200 --baseline {baseline}".split()
    listed = git(checkout, "log", "--format=%h", f"-{commits + 1}", "--", *PATHS).decode().split()
    for commit in reversed(listed):
        tree = folder / commit
        with tarfile.open(fileobj=io.BytesIO(git(checkout, "archive", commit, "trl"))) as archive:
            archive.extractall(tree, filter="data")
        cost = Cost([*gate, *script], folder, PYTHONPATH=str(tree))
        said = json.loads(cost.printed)
        baseline.write_text(cost.printed)
        yield {
            "commit": commit, "exit_code": cost.exit_code,
            "grown": [one["measure"] for one in said["baseline"]["grown"]],
            "peak_allocated_bytes": said["ranks"][0]["peak_allocated_bytes"],
            "step_seconds": said["step_seconds"],
            "cpu_seconds": round(cost.cpu_seconds, 1), "wall_seconds": round(cost.wall_seconds, 1),
        }  # fmt: skip


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--commits", type=int, default=50)
    parser.add_argument("--jsonl", type=Path, help="append a line for each commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as folder:
        for row in rows(options.checkout, options.commits, Path(folder)):
            if row["grown"]:
                print(f"{row['commit']}: {', '.join(row['grown'])} grew", flush=True)
            if options.jsonl:
                append(options.jsonl, row)


if __name__ == "__main__":
    main()
