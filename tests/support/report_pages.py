"""The pages that zerokit draws, one of each kind: runs and a rehearsal that are made up, and a real plan."""

from __future__ import annotations

import contextlib
import io
import math
import os
from pathlib import Path
from typing import Any

from zerokit.cli import run
from zerokit.rehearsal.html import RehearsalPage
from zerokit.rehearsal.html import render_html as render_rehearsal
from zerokit.rehearsal.result import Change, GuessedValue, HeldAtPeak, RankMemory, Rehearsal
from zerokit.report.context import RunContext
from zerokit.report.html import render_comparison, render_html
from zerokit.report.schema import RunReport
from zerokit.timing.recorded_step import StepTime

NAMES = ("run", "failed", "two", "rehearsal", "plan")
GIB = 1 << 30
_README_PLAN = ("--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "a100-80gb", "--seq-len", "4096")
FIELDS = ["uptime_seconds", "phase", "steps", "allocated_bytes", "reserved_bytes", "device_used_bytes",
          "host_rss_bytes"]  # fmt: skip


def phase_at(number: int, points: int) -> str:
    share = number / points
    if share < 0.1:
        return "load"
    if share < 0.2:
        return "init"
    if share > 0.95:
        return "save"
    return "eval" if 0.6 < share < 0.65 else ("forward", "backward", "step")[number % 3]


def rank(number: int, points: int, *, peak: int = 40 * GIB, ended: str = "finished") -> dict[str, Any]:
    timeline = [
        [at * 0.5, phase_at(at, points), at // 3,
         round(peak * (0.6 + 0.4 * abs(math.sin(at / 9))) * min(1, at / 50)),
         peak + GIB, peak + 3 * GIB, 6 * GIB]
        for at in range(points)
    ]  # fmt: skip
    timeline[points // 2][3] = peak
    return {
        "rank": number, "host": f"node-{number // 8}", "state": ended, "device": "cuda",
        "peak_allocated_bytes": peak, "peak_reserved_bytes": peak + GIB,
        "peak_device_used_bytes": peak + 3 * GIB,
        "device_total_bytes": 80 * GIB, "peak_host_rss_bytes": 6 * GIB,
        "alloc_retries": 3 if number == 1 else 0, "started_at": 1.79e9,
        "events": [{"at": 62.0, "what": "retry", "times": 3}] * (number == 1)
        + [{"at": points * 0.3, "what": "evaluation"}, {"at": points * 0.475, "what": "save"}],
        "peak_phase": "backward", "phases": {"load": GIB, "init": 9 * GIB, "forward": 38 * GIB,
                                           "backward": peak},
        "predicted_components": {"activations": 20 * GIB, "parameters": 12 * GIB, "loss": 9 * GIB},
        "steps": 100, "median_step_seconds": 1.4 if number == 5 else 1.0, "timeline": timeline,
        "timeline_fields": FIELDS,
        "phase_details": {name: {"seconds": seconds} for name, seconds in
                          (("load", 20.0), ("forward", 30.0), ("backward", 55.0), ("step", 12.0))},
        "engine": {"zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 8,
                   "parameters": 8_000_000_000},
    }  # fmt: skip


def _beside(predicted_gib: int, measured: int) -> dict[str, float]:
    predicted = predicted_gib * GIB
    return {"predicted": predicted, "measured": measured, "error_fraction": predicted / measured - 1}


def report(ranks: int, points: int = 300, **more: Any) -> RunReport:
    peak = (46 if ranks > 3 else 40) * GIB
    init, forward, backward = _beside(9, 9 * GIB), _beside(39, 38 * GIB), _beside(41, peak)
    body = {
        "schema": "zerokit.report/1", "outcome": "ok", "exit_code": 0, "script": "train.py", "device": "cuda",
        "started_at": 1.79e9, "elapsed_seconds": 150.0, "zerokit": "0.1.0", "expected_ranks": ranks,
        "ranks": [rank(n, points, peak=(46 if n == 3 else 40) * GIB) for n in range(ranks)],
        "predicted_vs_measured": {
            "kind": "gpu_memory", "rank": 3 if ranks > 3 else 0, "peak_bytes": backward,
            "phases": {"init": init, "forward": forward, "backward": backward},
            "step_seconds": {"predicted": 0.98, "measured": 1.0, "error_fraction": -0.02},
            "predicted_for": "plan",
            "components": {
                "init": {"initialisation": 9 * GIB},
                "forward": {"activations": 18 * GIB, "parameters": 12 * GIB, "loss": 9 * GIB},
                "backward": {"activations": 20 * GIB, "parameters": 12 * GIB, "loss": 9 * GIB},
            },
        },
    }  # fmt: skip
    return RunReport.model_validate({**body, **more})


PLAN = {
    "request": {"model": "llama-3.1-8b", "method": "full"},
    "chosen": {
        "zero_stage": 2, "data_parallel": 8, "deepspeed_config": {"zero_optimization": {"stage": 2}},
        "estimate": {"time_parts": {"compute": 0.8, "link": 0.15, "optimizer": 0.03}},
    },
    "reasons": {"zero_optimization.stage": "optimizer states and gradients are divided " * 4},
    "cluster": {"gpu": "h100-sxm-80gb"},
}  # fmt: skip
CONTEXT = RunContext(plan=PLAN, command=("--model", "x" * 300, "--epochs", "1"))
OTHER_CONTEXT = RunContext(plan=PLAN, command=("--epochs", "3"))


LINE = "site-packages/transformers/models/llama/modeling_llama.py:243"
REHEARSAL = Rehearsal(
    complete=True, fits=True, min_vram_bytes=52 * GIB, gpu="h200", gpus=8, steps=3, repeats=True,
    engine={"zero_stage": 3, "parameters": 8_030_261_248},
    model={"config": {"architectures": ["LlamaForCausalLM"], "_name_or_path": ""}, "method": "full"},
    config_files=("ds_config.json",),
    ranks=tuple(
        RankMemory(
            rank=number, peak_allocated_bytes=48 * GIB, peak_phase="backward", peak_reserved_bytes=50 * GIB,
            smallest_reserved_bytes=49 * GIB, host_bytes=3 * GIB, written_bytes=16 * GIB,
            phases={"load": 15 * GIB, "init": 22 * GIB, "forward": 45 * GIB, "backward": 48 * GIB,
                    "step": 30 * GIB, "save": 15 * GIB},
            at_peak=(
                HeldAtPeak(what="activations", module="module.model.layers.*.self_attn.q_proj",
                           location=LINE, bytes=20 * GIB),
                HeldAtPeak(what="optimizer states", module="", location="", bytes=28 * GIB),
            ),
            lower_bounds={"generate": ("a cache that grows by the answers' lengths",)} if number else {},
        )
        for number in (0, 7)
    ),
    guesses=(GuessedValue(location=LINE, what="item of bool", value=False, times=2, decides_sizes=True),),
    stubbed=("triton kernels of flash-attn",), warnings=("torch 2.11 here, 2.4.0 in requirements.txt",),
    notes=("rank 0 stands for ranks 1 to 6",), versions={"torch": "2.11.0", "deepspeed": "0.19.8"},
    step_seconds=1.1,
    step=StepTime(seconds=1.1, low=1.0, high=1.3, paced_by="host", parts={}, host_factor=None, note=""),
    changes=(Change(what="activation checkpointing (`--gradient_checkpointing`)", saves_bytes=17 * GIB),),
)  # fmt: skip
REHEARSAL_PAGE = RehearsalPage(
    script="train.py", written_at=1.79e9,
    command=("rehearse", "--gpus", "8", "--gpu", "h200", "train.py", "--deepspeed", "ds_config.json"),
)  # fmt: skip


OOM = {
    "asked_bytes": 4 * GIB, "device_free_bytes": round(1.4 * GIB), "device_total_bytes": 80 * GIB,
    "allocated_bytes": 74 * GIB, "reserved_bytes": 76 * GIB, "fragmentation_bytes": 2 * GIB,
    "measured_peak_allocated_bytes": 74 * GIB, "predicted_peak_allocated_bytes": 66 * GIB,
    "biggest_blocks": [{"bytes": 4 * GIB, "dtype": "torch.float32", "shape": [4, 4096, 65536]}],
}  # fmt: skip


def out_of_memory(points: int = 160) -> RunReport:
    """A run of eight ranks of which the third has a longer batch than the others, and no room for it."""
    sizes = [(74 if number == 3 else 64 + number % 3) * GIB for number in range(8)]
    ranks = [rank(number, points, peak=size, ended="failed" if number == 3 else "terminated")
             for number, size in enumerate(sizes)]  # fmt: skip
    for one in ranks:
        one |= {
            "steps": 60,
            "events": [],
            "alloc_retries": 2 * (one["rank"] == 3),
            "phases": {
                "load": GIB,
                "init": 9 * GIB,
                "forward": 58 * GIB,
                "backward": one["peak_allocated_bytes"],
            },
        }
        spent = {"load": 8.0, "forward": 18.0, "backward": 33.0, "step": 7.0}
        one["phase_details"] = {name: {"seconds": seconds} for name, seconds in spent.items()}
        one["timeline"] = [
            [*point[:1], "backward" if point[1] in ("eval", "save") else point[1], *point[2:]]
            for point in one["timeline"]
        ]
    at = points * 0.5
    ranks[3]["peak_reserved_bytes"], ranks[3]["peak_device_used_bytes"] = 76 * GIB, round(78.6 * GIB)
    ranks[3]["events"] = [{"at": at - 12, "what": "retry", "times": 2}, {"at": at - 0.5, "what": "oom"}]
    failure = {
        "rank": 3, "host": "node-0", "kind": "oom", "phase": "backward", "step": 61, "at": 1.79e9 + at,
        "error": "CUDA out of memory", "traceback": "Traceback\n  File train.py\n" + "y" * 300, "oom": OOM,
        "try_next": ["--zero 3", "a smaller batch"],
    }  # fmt: skip
    peak = _beside(66, sizes[3])
    parts = {"activations": 37 * GIB, "parameters": 20 * GIB, "loss": 9 * GIB}
    return RunReport.model_validate({
        **report(8).to_dict(),
        "outcome": "oom", "exit_code": 10, "first_failure": failure, "elapsed_seconds": at + 4,
        "ranks": [{**one, "predicted_components": parts} for one in ranks],
        "predicted_vs_measured": {
            "kind": "gpu_memory", "rank": 3, "peak_bytes": peak, "predicted_for": "plan",
            "phases": {"init": _beside(9, 9 * GIB), "forward": _beside(58, 58 * GIB), "backward": peak},
            "components": {"init": {"initialisation": 9 * GIB}, "backward": parts},
        },
    })  # fmt: skip


def write_pages(folder: Path) -> dict[str, Path]:
    """Write ``NAME.html`` into ``folder`` for each of NAMES."""
    texts = {
        "run": render_html(report(8), CONTEXT),
        "failed": render_html(out_of_memory(), CONTEXT),
        "rehearsal": render_rehearsal(REHEARSAL, REHEARSAL_PAGE),
        "two": render_comparison((report(2), report(8)), ("runs/a", "runs/b"), (CONTEXT, OTHER_CONTEXT)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    here = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            assert run(["plan", *_README_PLAN, "-q", "--html", "plan.html"]) == 0
    finally:
        os.chdir(here)
    return {name: folder / f"{name}.html" for name in NAMES}
