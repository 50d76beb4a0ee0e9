"""Peaks on a GPU under options that the script carries out, beside what was said before.

    python -m benchmarks.option_peaks predict GROUP OUT.jsonl  # without a GPU
    python -m benchmarks.option_peaks measure GROUP OUT.jsonl  # on one GPU: each case in a process of its own
    python -m benchmarks.option_peaks compare PREDICTED.jsonl MEASURED.jsonl

Groups: ``losses`` (of libraries), ``memory`` (8-bit bases under LoRA, offloaded activations). A case is the
loop of ``benchmarks/rehearsal/raw_loop.py`` over Llama 3.2 1B with sequences of 2,048 tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy import judge, read_case
from benchmarks.common import rows
from benchmarks.replay_and_rehearsal import RAW_LOOP
from zerokit.catalog import models
from zerokit.trace.on_demand import complete

LOSSES = {
    "z2.b4.standard": {"stage": 2, "loss": "standard"},
    "z2.b4.liger": {"stage": 2, "loss": "liger"},
    "z2.b4.chunked": {"stage": 2, "loss": "chunked"},
    "z2.b4.cut": {"stage": 2, "loss": "cut"},
    "z3.b4.ck.liger": {"stage": 3, "loss": "liger", "checkpointing": True},
    "z3.b4.ck.chunked": {"stage": 3, "loss": "chunked", "checkpointing": True},
}
"""Name -> stage, loss, checkpointing."""
MEMORY = {
    "lora-int8": {"stage": 2, "int8": True, "initializer_range": 0.002},
    "lora-int8.ck": {"stage": 2, "int8": True, "initializer_range": 0.002, "checkpointing": True},
    "lora-int8.outliers": {"stage": 2, "int8": True},
    "act": {"stage": 2, "offload_activations": True},
    "act.ck": {"stage": 2, "offload_activations": True, "checkpointing": True},
    "act.z3": {"stage": 3, "offload_activations": True},
}
"""Small random weights leave no input above LLM.int8's threshold; ``outliers`` has weights of the usual size,
whose random products exceed it in nearly every column: what the prediction leaves out."""
CASES: dict[str, dict[str, Any]] = LOSSES | MEMORY
_GROUPS = {"losses": LOSSES, "memory": MEMORY}
_LORA = {"r": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
_PHASES = ("forward", "level_after_forward", "backward", "step")
_SECONDS = 120
"""The most that one case may take."""


def row_of(name: str) -> dict[str, Any]:
    """A case as a row of ``h200-deepspeed.jsonl``, without measurements."""
    case = CASES[name]
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        "zero_optimization": {"stage": case["stage"]},
        "steps_per_print": 1_000_000,
    }
    loss = case.get("loss", "standard")
    changed = {key: case[key] for key in ("initializer_range",) if key in case}
    script = {"bits": 8} if case.get("int8") else {}
    script |= {"offload_activations": True} if case.get("offload_activations") else {}
    return {
        "id": name, "hf_config": dict(models.load("llama-3.2-1b").hf_config) | changed, "head": "causal",
        "world_size": 1, "tensor_parallel": 1, "micro_batch": 4, "seq_len": 2048, "gradient_accumulation": 1,
        "activation_checkpointing": bool(case.get("checkpointing")), "use_reentrant": False,
        "attention": "sdpa", "attention_mask_given": False, "weights_loaded_as": "model",
        "lora": _LORA if case.get("int8") else None, "loss": None if loss == "standard" else loss, **script,
        "ok": True, "deepspeed_config": settings,
    }  # fmt: skip


def predict(name: str) -> dict[str, Any]:
    """What the replay says: the peak of every phase of the last step."""
    row = row_of(name)
    nothing = dict.fromkeys(("alloc", "max_alloc"), 1)
    unmeasured = {
        "last_step_rank0": {"fwd": nothing, "bwd": nothing, "step": nothing}, "after_init_rank0": nothing,
        "peak_allocated_bytes": [1], "host_max_rss_bytes": [0],
    }  # fmt: skip
    case = read_case(row | unmeasured)
    job = replace(
        case.job,
        loss=row["loss"] or "standard",
        quantization="int8" if "bits" in row else "none",
        offload_activations="offload_activations" in row,
    )
    case = replace(case, job=job)
    said = judge(case, complete(None, row["hf_config"], case.job, case.strategy, name=name, head="causal"))
    phases = {phase: getattr(said, phase)[0] for phase in _PHASES}
    return {"name": name, "peak_allocated_bytes": said.peaks[0][0], "phases": phases}


def measure(name: str) -> dict[str, Any]:
    """The same, measured."""
    with tempfile.TemporaryDirectory() as folder:
        row, out = Path(folder, "row.json"), Path(folder, "out.json")
        row.write_text(json.dumps(row_of(name)))
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1", str(RAW_LOOP)]
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        ended = subprocess.run(
            [*command, str(row), str(out)], env=environment, timeout=_SECONDS, capture_output=True, text=True
        )
        if not out.exists():
            return {"name": name, "failed": ended.stderr[-2000:]}
        record = json.loads(out.read_text())
    last = record["last_step_rank0"]
    phases = {
        "forward": last["fwd"]["max_alloc"],
        "level_after_forward": last["fwd"]["alloc"],
        "backward": last["bwd"]["max_alloc"],
        "step": last["step"]["max_alloc"],
    }
    return {"name": name, "peak_allocated_bytes": record["peak"], "phases": phases}


def compare(predicted: Path, measured: Path) -> None:
    """Print a line a case: measured bytes, and by how much the prediction differs."""
    said = {row["name"]: row for row in rows(predicted)}
    for row in rows(measured):
        if "failed" in row:
            print(f"{row['name']:<20} failed: {row['failed'].splitlines()[-1]}")
            continue
        before = said[row["name"]]
        pairs = {"peak": (before["peak_allocated_bytes"], row["peak_allocated_bytes"])}
        pairs |= {phase: (before["phases"][phase], row["phases"][phase]) for phase in _PHASES}
        told = "  ".join(f"{k} {m / 2**30:.3f} GiB {p / m - 1:+.3%}" for k, (p, m) in pairs.items())
        print(f"{row['name']:<20} {told}")


def main() -> None:
    mode, first, second = sys.argv[1:]
    if mode == "compare":
        compare(Path(first), Path(second))
        return
    for name in _GROUPS[first]:
        found = predict(name) if mode == "predict" else measure(name)
        with Path(second).open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found)[:300], flush=True)


if __name__ == "__main__":
    main()
