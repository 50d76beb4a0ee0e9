"""Damaged and forged files through the command line, in this process: no traceback, no exit 1, none slow.

    python -m benchmarks.hostile_files                     # 1,500 cases; some ten minutes, most of it models
    python -m benchmarks.hostile_files --kinds model,hostfile --count 100 --seed 3
    python -m benchmarks.hostile_files --kinds stranger    # 2,000 of 500 names x 200 texts x every command

Of each kind of file that zerokit reads: values of the wrong type, infinities, huge and negative numbers, keys
that are gone or renamed, bytes that are changed, added or cut off. A stranger's folder has hostile names,
texts, links out of it, links to devices and pipes: nothing may be printed raw, nothing outside of it read or
written, and no command may take more than 5 s of CPU (tests/support/strangers.py).
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import append, options_of, rows
from tests.support import strangers
from tests.support.hostile import damaged, odd
from tests.support.plans import write_plan
from tests.support.run_folders import PLAN_COMMANDS, write_run
from zerokit.cli import run

SLOW_SECONDS = 10.0  # of CPU, with torch imported
MODELS: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5,
     "intermediate_size": 256, "num_key_value_heads": 2, "rope_theta": 1e4, "attention_bias": False},
    {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 128, "n_layer": 2, "n_head": 4,
     "n_positions": 256, "activation_function": "gelu_new", "resid_pdrop": 0.1},
    {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 2,
     "num_experts_per_tok": 1, "intermediate_size": 256, "num_key_value_heads": 2, "sliding_window": None},
    {"model_type": "bert", "architectures": ["BertForMaskedLM"], "intermediate_size": 256,
     "hidden_act": "gelu", "type_vocab_size": 2, "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-12},
    {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 32,
     "intermediate_size": 256, "num_key_value_heads": 2, "sliding_window": 64, "query_pre_attn_scalar": 32,
     "hidden_activation": "gelu"},
)  # fmt: skip
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
         "max_position_embeddings": 256, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}  # fmt: skip
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
    "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8,
                          "stage3_max_live_parameters": 1e9},
    "activation_checkpointing": {"partition_activations": False}, "wall_clock_breakdown": False,
}  # fmt: skip
HOSTFILE = b"node-0 slots=4\nnode-1 slots=4\n# spare\nnode-2 slots=8\n"
RECIPE: dict[str, Any] = {
    "title": "An 8B on four GPUs", "description": "Mine.", "params": "8b", "gpus": 4, "gpu": "h200",
    "method": "full", "zero": 3, "offload_optimizer": "cpu", "seq_len": 2048, "global_batch": 32,
}  # fmt: skip

Case = Callable[[random.Random], list[str]]
"""Writes a damaged file, and returns the command that reads it."""


def _write(path: Path, value: Any, draw: random.Random) -> None:
    text = json.dumps(value).encode()
    path.write_bytes(damaged(text, draw) if draw.random() < 0.15 else text)


def model(draw: random.Random) -> list[str]:
    Path("model").mkdir(exist_ok=True)
    whole = SIZES | draw.choice(MODELS)
    _write(Path("model/config.json"), odd(whole, draw), draw)
    job = ["--model", "model", "--gpu", "h200", "--gpus", "2", "--seq-len", "64"]
    return [draw.choice(["estimate", "plan", "size"]), *job]


def plan(draw: random.Random) -> list[str]:
    whole = yaml.safe_load(Path("whole/plan.yaml").read_text())
    _write(Path("plan/plan.yaml"), odd(whole, draw), draw)
    return list(draw.choice(PLAN_COMMANDS))


def ranks(draw: random.Random) -> list[str]:
    write_run(Path("run"))
    path = Path("run", f"rank-0000{draw.randrange(2)}.jsonl")
    lines = rows(path)
    at = draw.randrange(len(lines))
    lines[at] = odd(lines[at], draw)
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(damaged(text, draw) if draw.random() < 0.3 else text)
    return ["report", *draw.choice([[], ["--json"], ["--html", "page.html"]]), "run"]


def deepspeed(draw: random.Random) -> list[str]:
    _write(Path("ds.json"), odd(DEEPSPEED, draw), draw)
    if draw.random() < 0.05:
        Path("ds.json").write_text(json.dumps(DEEPSPEED | {"gradient_clipping": [1]}))
    estimate = ["estimate", "--params", "1b", "--gpus", "4", "--gpu", "h200", "--deepspeed", "ds.json"]
    launch = ["launch", "--deepspeed", "ds.json", "--device", "cpu", "--dry-run", "t.py"]
    return draw.choice([["check", "ds.json"], ["check", "--fix", "ds.json"], estimate, launch])


def hostfile(draw: random.Random) -> list[str]:
    Path("hostfile").write_bytes(damaged(HOSTFILE * draw.randint(1, 3), draw))
    launch = ["launch", "--hostfile", "hostfile", "--nodes", "1", "--device", "cpu", "--dry-run", "t.py"]
    return draw.choice([["check", "hostfile"], launch])


def recipe(draw: random.Random) -> list[str]:
    _write(Path("recipe.yaml"), odd(RECIPE, draw), draw)
    file = "./recipe.yaml"
    return draw.choice([["plan", "--recipe", file], ["recipes", "show", file], ["check", file],
                        ["launch", "--recipe", file, "--device", "cpu", "--dry-run", "t.py"]])  # fmt: skip


KINDS: dict[str, tuple[Case, int]] = {
    "model": (model, 500), "plan": (plan, 250), "ranks": (ranks, 250), "deepspeed": (deepspeed, 250),
    "hostfile": (hostfile, 100), "recipe": (recipe, 150),
}  # fmt: skip


def stranger(seed: int) -> dict[str, Any]:
    """One folder of a stranger and one command: names, texts and commands are passed through evenly."""
    name = NAMES[seed * 7 % len(NAMES)]
    words = strangers.commands(name)
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        before = Path.cwd()
        try:
            strangers.lay(Path(folder), name, TEXTS[seed * 3 % len(TEXTS)], random.Random(seed))
            row = strangers.try_command(Path(folder), words[seed % len(words)])
        finally:
            os.chdir(before)
    return {"kind": "stranger", "seed": seed, **row}


NAMES, TEXTS = strangers.names(500), strangers.texts(200)


def one(kind: str, seed: int) -> dict[str, Any]:
    """One case: its command, exit code and CPU seconds, and what was wrong."""
    words = KINDS[kind][0](random.Random(f"{kind} {seed}"))
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    began, crash = time.process_time(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(words)
        except Exception:
            code, crash = 1, traceback.format_exc()
    seconds = time.process_time() - began
    err.seek(0)
    said = err.read()
    wrong = [f"exit code {code}"] if code not in (0, 2, 3, 13, 14) else []
    wrong += ["a traceback is shown"] if crash is None and "Traceback" in said else []
    wrong += [f"{seconds:.1f} s"] if seconds > SLOW_SECONDS else []
    return {"kind": kind, "seed": seed, "command": words, "exit_code": code, "seconds": round(seconds, 2),
            "wrong": wrong, "crash": crash, "said": said[-600:]}  # fmt: skip


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """As contextlib.chdir, which Python 3.10 lacks."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> int:
    """Run the cases; print those that are wrong, and the counts."""
    parser = options_of(__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--count", type=int, help="of each kind; default: 1,500 together")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    log = args.log.absolute() if args.log else None
    counts: collections.Counter[str] = collections.Counter()
    slowest: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder, _inside(folder):
        os.environ |= {"XDG_CACHE_HOME": str(Path(folder) / "cache"), "HF_HUB_OFFLINE": "1"}
        write_plan(Path("plan"))
        write_plan(Path("whole"))
        Path("t.py").write_text("print(1)\n")
        for kind in args.kinds.split(","):
            for seed in range(args.seed, args.seed + (args.count or KINDS.get(kind, (None, 2000))[1])):
                row = stranger(seed) if kind == "stranger" else one(kind, seed)
                counts[f"{kind}: exit {row['exit_code']}"] += 1
                slowest[kind] = max(slowest.get(kind, 0.0), row["seconds"])
                if log:
                    append(log, row)
                if row["wrong"]:
                    counts["wrong"] += 1
                    print(json.dumps(row, indent=1), flush=True)
    print(dict(counts), {kind: f"at most {seconds} s" for kind, seconds in slowest.items()})
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
