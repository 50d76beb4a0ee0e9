"""What the gate says of a trainer's commits, each held to the one before it, and of growths that are planted.

    python -m benchmarks.rehearsal_gate CHECKOUT [--commits 50] [--jsonl OUT]
    python -m benchmarks.rehearsal_gate --planted [--jsonl OUT]

CHECKOUT is a clone of huggingface/trl. The last commits that touch its SFT trainer or its scripts are
rehearsed with `--baseline`, oldest first: full training of a Llama of 4 layers on one H200. Each growth is
printed; whether the commit meant it is for a person to say. `--planted` changes TRL's installed sft.py in one
place at a time; the exit code is 1 where a growth is not found, or neither its line nor its module is named
(`rehearsal/planted-growths.jsonl` has its rows).
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
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

LAYER = "trainer.model.model.layers[0]"
_CALLBACK = (
    "trainer.add_callback(type('Planted', (__import__('transformers').TrainerCallback,), "
    "{{'{}': lambda self, *args, model=None, **more: {}}}))"
)
PLANTED = {
    "a copy of a layer as a reference": f"reference = __import__('copy').deepcopy({LAYER})",
    "an average of a layer's weights": f"ema = [p.detach().clone() for p in {LAYER}.parameters()]",
    "statistics in fp32": f"stats = [p.detach().float() for p in {LAYER}.self_attn.parameters()]",
    "a copy of half of the embeddings": (
        "before = trainer.model.model.embed_tokens.weight[:16000].detach().clone()"
    ),
    "a mask of all pairs": "mask = torch.ones(2048, 2048, device='cuda')",
    "a buffer of the model's": "trainer.model.register_buffer('seen', torch.zeros(2**22, device='cuda'))",
    "more rows of the vocabulary": "trainer.model.resize_token_embeddings(32800)",
    "a layer without checkpointing": _CALLBACK.format(
        "on_step_begin", "model.model.layers[0].__dict__.update(gradient_checkpointing=False)"
    ),
    "hidden states that are kept": "kept = []; trainer.model.model.norm.register_forward_hook("
    "lambda module, args, output: kept.__setitem__(slice(None), [output.float()]))",
    "what a layer gives, kept": f"kept = []; {LAYER}.register_forward_hook("
    "lambda module, args, output: kept.__setitem__(slice(None), [output * 2]))",
    "a gradient that is kept": f"kept = {{}}; {LAYER}.mlp.up_proj.weight.register_hook("
    "lambda grad: kept.__setitem__(0, grad.clone()))",
    "gradients of a layer, in fp32": f"kept = {{}}; [p.register_hook(lambda grad, n=n: kept.__setitem__("
    f"n, grad.float())) for n, p in {LAYER}.mlp.named_parameters()]",
    "a row of one-hot labels": "trainer.model.register_forward_pre_hook(lambda module, args, kwargs: "
    "module.__dict__.update(hot=torch.nn.functional.one_hot(kwargs['input_ids'] % 400, 400)), "
    "with_kwargs=True)",
    "a batch that waits on the GPU": "trainer.model.register_forward_pre_hook(lambda module, args, kwargs: "
    "module.__dict__.update(last=[kwargs['input_ids'].double().repeat(1, 400)]), with_kwargs=True)",
    "a second head": "second = torch.nn.Linear(1024, 4000, device='cuda')",
    "a teacher's forward beside": "trainer.model.register_forward_pre_hook(lambda module, args, kwargs: "
    "module.__dict__.update(told=torch.zeros(2, 2048, 1024, device='cuda').softmax(-1)), with_kwargs=True)",
    "weights of the step before": _CALLBACK.format(
        "on_step_end",
        "setattr(self, 'last', [p.detach().clone() for p in model.model.layers[1].parameters()])",
    ),
    "momentum before its time": f"trainer.create_optimizer(); momentum = [torch.zeros_like(p) for p in "
    f"{LAYER}.parameters()]",
    "a longer row": "trainer.data_collator = (lambda inner: lambda rows: {name: torch.nn.functional.pad("
    "tensor, (0, 64)) for name, tensor in inner(rows).items()})(trainer.data_collator)",
    "a copy while saving": "save = trainer.save_model; trainer.save_model = lambda *a, **k: ("
    f"trainer.__dict__.update(copy=[p.clone() for p in {LAYER}.parameters()]), save(*a, **k))",
}
"""What is done before training begins."""
_BEGIN = "    trainer.train("


def planted(folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each planted growth."""
    from trl.scripts import sft

    inputs, script, baseline = Inputs(folder / "inputs"), folder / "sft.py", folder / "baseline.json"
    text = Path(sft.__file__).read_text()
    assert text.count(_BEGIN) == 1
    gate = f"-m zerokit rehearse --json --no-cache --gpu h200 --baseline {baseline} --max-growth 0.4%".split()
    words = [*gate, str(script), *_arguments(inputs, folder), "--gradient_checkpointing", "True"]
    first: int | None = None
    for name, change in {"nothing": "pass", **PLANTED}.items():
        script.write_text(text.replace(_BEGIN, f"    import torch\n    {change}\n{_BEGIN}"))
        line = script.read_text().splitlines().index(f"    {change}") + 1
        cost = Cost(words, folder)
        said = json.loads(cost.printed)
        grown = said["baseline"]["grown"]
        peak = said["ranks"][0]["peak_allocated_bytes"]
        first = peak if first is None else first
        places = {part["location"] for one in grown for part in one["parts"]}
        modules = {part["module"] for one in grown for part in one["parts"] if part["module"]}
        yield {
            "planted": name, "exit_code": cost.exit_code, "peak_grown": round(peak / first - 1, 4),
            "line": any(place.endswith(f"sft.py:{line}") for place in places), "modules": sorted(modules),
            "grown": [f"{one['phase']} {one['now'] / one['before'] - 1:+.1%}" for one in grown],
            "cpu_seconds": round(cost.cpu_seconds, 1), "wall_seconds": round(cost.wall_seconds, 1),
        }  # fmt: skip


def git(checkout: Path, *words: str) -> bytes:
    """What git prints."""
    return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, check=True).stdout


def _arguments(inputs: Inputs, folder: Path) -> list[str]:
    return f"""--model_name_or_path {inputs.model(MODEL)} --dtype bfloat16
        --dataset_name {inputs.folder / "sft"} --output_dir {folder / "out"} --report_to none --bf16 True
        --per_device_train_batch_size 2 --max_length 2048""".split()


def rows(checkout: Path, commits: int, folder: Path) -> Iterator[dict[str, Any]]:
    """One for each commit, the first of which is only a baseline."""
    inputs, baseline = Inputs(folder / "inputs"), folder / "baseline.json"
    script = ["-m", "trl.scripts.sft", *_arguments(inputs, folder)]
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


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--commits", type=int, default=50)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--jsonl", type=Path, help="append a line for each commit or growth")
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="zerokit-benchmark-") as temporary:
        folder = Path(temporary)
        found = planted(folder) if options.planted else rows(options.checkout, options.commits, folder)
        for row in found:
            if options.planted:
                is_found = (row["exit_code"] == 15) == (row["planted"] != "nothing")
                missed |= not is_found or bool(row["grown"] and not (row["line"] or row["modules"]))
                print(json.dumps(row), flush=True)
            elif row["grown"]:
                print(f"{row['commit']}: {', '.join(row['grown'])} grew", flush=True)
            if options.jsonl:
                append(options.jsonl, row)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
