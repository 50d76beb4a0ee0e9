"""Causes of hangs, injected: is the verdict's cause right, and how long after the heartbeat does it stand?

    python -m benchmarks.hangs OUT.jsonl --ranks 4 --at-once 1              # CPU ranks, gloo
    python -m benchmarks.hangs OUT.jsonl --device cuda --kinds nccl         # GPUs, NCCL, all side by side
    python -m benchmarks.hangs OUT.jsonl --device cuda --kinds public --public finetune_llama.py

Each is a launch of tests/scripts/hanging.py in which the last rank does something that the others do not.
``ten`` are ten causes as unlike as can be. ``public`` runs DeepSpeedExamples'
DeepSpeed-ZenFlow/finetuning/finetune_llama.py unmodified, on a small Llama and a data set of our own: at its
end it saves on rank 0 only. ``late_seconds`` is from the last step
that rank 0 printed to the words "likely cause", less the heartbeat: it holds the time in which the ranks
came to a stop.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import options_of

SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "hanging.py"
HEARTBEAT = 15.0
LIMIT_SECONDS = 400.0
# what each does, the outcomes and causes that would be right, and words that must be in the verdict
CAUSES: dict[str, tuple[frozenset[str], str]] = {
    "module": (frozenset({"module_skipped"}), "skipped `visual` in step 5"),
    "expert": (frozenset({"module_skipped"}), "skipped `experts.1`"),
    "uneven": (frozenset({"uneven_batches"}), "rank {last} left the training loop"),
    "uneven-gone": (frozenset({"uneven_batches"}), "rank {last} left the training loop"),
    "save": (frozenset({"save_on_some_ranks"}), "rank 0 saves alone"),
    "save-last": (frozenset({"save_on_some_ranks"}), "rank 0 saves alone"),
    "save-last-gone": (frozenset({"save_on_some_ranks"}), "rank 0 saves alone"),
    "shapes": (frozenset({"different_shapes"}), ""),
    "operation": (frozenset({"different_collectives"}), "barrier"),
    "group": (frozenset({"wrong_group"}), "different groups"),
    "evaluate": (frozenset({"eval_on_some_ranks"}), "rank 0"),
    "dead": (frozenset({"ended_early"}), "rank {last}"),
    "oom": (frozenset({"none"}), "cannot allocate 80 GiB"),
    "stopped": (frozenset({"stopped"}), "rank {last} is stopped"),
    "loader": (frozenset({"data_loader"}), "rank {last} waits for its next batch"),
    "lock": (frozenset({"lock"}), "rank {last} waits for a lock"),
    "compile": (frozenset({"child_process"}), "rank {last} waits for a process"),
    "two-locks": (frozenset({"lock"}), "flusher"),
    "network": (frozenset({"network"}), "no data moves"),
    "public": (frozenset({"save_on_some_ranks"}), "rank 0 saves alone (save_checkpoint"),
}
OWN_NETWORK = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""A namespace whose only interface the script takes down; takes root."""
SETS = {
    "cpu": ("module", "expert", "uneven", "save", "save-last", "stopped", "loader", "lock", "compile",
            "operation", "group", "two-locks", "uneven-gone", "save-last-gone", "shapes", "dead", "oom",
            "evaluate", "network"),
    "ten": ("module", "uneven", "save", "oom", "loader", "compile", "shapes", "network", "group",
            "two-locks"),
    "nccl": ("module", "expert", "uneven", "uneven-gone", "save", "save-last-gone", "shapes", "operation",
             "group", "evaluate", "dead", "oom", "loader"),
    "public": ("public",),
}  # fmt: skip


class Case:
    """One launch, its output read as it comes."""

    def __init__(self, kind: str, args: argparse.Namespace, folder: Path) -> None:
        self.kind, self.args, self.folder = kind, args, folder
        self.lines: list[tuple[float, str]] = []

    def run(self) -> dict[str, Any]:
        """Its row: what was said, and whether that is right."""
        self.folder.mkdir()
        options = ["--device", self.args.device, "--num-ranks", str(self.args.ranks), "--style", "none",
                   "--heartbeat", str(HEARTBEAT), "--grace", "2", "--run-dir", "run"]  # fmt: skip
        script = [str(SCRIPT), self.kind]
        if self.kind == "public":
            script = [str(self.args.public.resolve()), *public_arguments(self.folder)]
        paths = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
                       "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}  # fmt: skip
        process = subprocess.Popen(
            [*(OWN_NETWORK if self.kind == "network" else ()), sys.executable, "-m", "zerokit", "launch",
             *options, *script], cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        guillotine = threading.Timer(LIMIT_SECONDS, process.terminate)
        guillotine.start()
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))
        code = process.wait()
        guillotine.cancel()
        return self._row(code)

    def _row(self, code: int) -> dict[str, Any]:
        path = self.folder / "run" / "report.json"
        report = json.loads(path.read_text()) if path.is_file() else {}
        hang, why = report.get("hang") or {}, str(report.get("why"))
        kinds, words = CAUSES[self.kind]
        last = self.args.ranks - 1
        right = hang.get("kind", "none") in kinds and words.format(last=last) in f"{why} {hang.get('what')}"
        right = right and code in (10, 11)
        if self.kind == "shapes" and self.args.device == "cuda":  # NCCL compares nothing, and nothing hangs
            told = [problem for problem in report.get("problems", ()) if "GPUs do not notice" in problem]
            right, why = bool(told) and code == 0, " ".join([why, *told])
        steps = [at for at, line in self.lines if line.lower().startswith("step ")]
        said = [at for at, line in self.lines if "likely cause" in line]
        late = round(said[0] - steps[-1] - HEARTBEAT, 1) if steps and said and code == 11 else None
        row = {
            "kind": self.kind, "device": self.args.device, "ranks": self.args.ranks, "exit_code": code,
            "right": right, "late_seconds": late, "cause": hang or None,
            "why": why[:700],
        }  # fmt: skip
        return row if row["right"] else {**row, "output": [line for _, line in self.lines][-40:]}


def public_arguments(folder: Path) -> list[str]:
    """Make a small Llama, a tokenizer, data like Alpaca's and a configuration; returns the arguments."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [
        "Instruction",
        "Input",
        "Response",
        "say",
        "the",
        "number",
        "one",
        "two",
        "three",
        "four",
        "five",
    ]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(["<unk>", "</s>", *words])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder / "llama")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                      num_attention_heads=4, vocab_size=64)  # fmt: skip
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "llama")
    data = folder / "tatsu-lab" / "alpaca"
    data.mkdir(parents=True)
    rows = [{"instruction": f"say the number {w}", "input": "", "output": w} for w in words[6:]]
    (data / "train.json").write_text("\n".join(map(json.dumps, 3 * rows)))
    settings = {
        "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "torch_adam": True}}, "gradient_clipping": 1.0,
    }  # fmt: skip
    (folder / "zero2.json").write_text(json.dumps(settings))
    return ["--deepspeed_config", "zero2.json", "--model_name", "llama", "--lr", "2e-5", "--batch_size", "2",
            "--num_train_epochs", "1", "--output_dir", "out"]  # fmt: skip


def main() -> int:
    """Inject those asked for, a line of JSON each."""
    parser = options_of(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", default="cpu", help=f"of {', '.join(CAUSES)}; or {', '.join(SETS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--public", type=Path, help="finetune_llama.py")
    args = parser.parse_args()
    kinds = [kind for name in args.kinds.split(",") for kind in SETS.get(name, (name,))]
    rows = []
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="hangs-") as name, ThreadPoolExecutor(args.at_once) as pool:
        for row in pool.map(lambda kind: Case(kind, args, Path(name) / kind).run(), kinds):
            with lock, args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
            said = f"{'right' if row['right'] else 'WRONG'}  {row['late_seconds']} s  {row['why'][:300]}"
            print(f"{row['kind']:<15} {said}", flush=True)
    print(f"{sum(row['right'] for row in rows)} of {len(rows)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
