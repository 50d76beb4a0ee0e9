"""Where a training step's time goes on one quiet GPU: kernels by kind, host time, the allocator's retries.

    python -m benchmarks.measure.kernels -o ROWS.jsonl [--only TEXT] [--seconds 400]

The source of constants in ``zerokit/timing/constants.py``. Real DeepSpeed on one GPU with a few layers of a
model, at two depths, so that a layer's share is a difference. A row is a case with, of steady steps: wall
seconds of forward, backward and step without a wait between them and of each alone; GPU seconds of each by
kind of kernel and how many kernels; and steps with the allocator held to so many MiB above the peak. Rows
named ``remap`` are the allocator alone: blocks given back and mapped anew, in so many processes at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.case import complete

MIB = 2**20
_LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 32000, "hidden_act": "silu",
          "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama-2048": {**_LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32},
    "llama-4096": {**_LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32},
    "qwen2-896": {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
                  "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
                  "max_position_embeddings": 32768, "tie_word_embeddings": True},
    "neox-2560": {"model_type": "gpt_neox", "hidden_size": 2560, "intermediate_size": 10240,
                  "num_attention_heads": 32, "vocab_size": 50304, "max_position_embeddings": 4096},
    "gpt2-1600": {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_positions": 2048,
                  "vocab_size": 50257, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
}  # fmt: skip
_DEPTH = {"gpt2": "n_layer"}
_KINDS = (
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("collective", ("nccl",)),
    ("product", ("gemm", "nvjet", "cutlass", "cublas", "xmma", "splitk", "gemv")),
    ("optimizer", ("adam", "l2norm")),
    ("loss", ("softmax", "nll_loss")),
    ("copy", ("memcpy", "memset")),
)


def _case(model: str, layers: int, stage: int, micro: int, length: int, **more: Any) -> dict[str, Any]:
    config = MODELS[model]
    kind = "ck" if more.get("activation_checkpointing") else ""
    ranks = f".w{more['world_size']}" if more.get("world_size", 1) > 1 else ""
    name = f"{model}.l{layers}.z{stage}.b{micro}.s{length}{kind}{'.lora' if more.get('lora') else ''}{ranks}"
    return complete(
        {
            "id": name,
            "hf_config": {**config, _DEPTH.get(config["model_type"], "num_hidden_layers"): layers},
            "deepspeed_config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}},
            "micro_batch": micro,
            "seq_len": length,
            **more,
        }
    )


_LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
CASES = [
    # much work on the GPU
    *(_case("llama-4096", layers, 1, 4, 2048) for layers in (2, 6)),
    _case("llama-4096", 6, 1, 1, 512),
    *(_case("llama-4096", layers, 1, 4, 2048, lora=_LORA) for layers in (2, 6)),
    _case("llama-4096", 6, 1, 1, 8192, activation_checkpointing=True),
    _case("llama-4096", 6, 3, 4, 2048),
    *(_case("llama-2048", layers, 1, 4, 2048) for layers in (4, 16)),
    *(_case("qwen2-896", layers, 1, 4, 2048) for layers in (4, 16)),
    *(_case("neox-2560", layers, 1, 4, 2048) for layers in (4, 12)),
    *(_case("gpt2-1600", layers, 1, 8, 1024) for layers in (4, 12)),
    # and hardly any: what the host needs to launch
    *(_case("llama-2048", layers, 1, 1, 64) for layers in (4, 16)),
    _case("llama-2048", 16, 1, 1, 64, activation_checkpointing=True),
    *(_case("llama-2048", layers, 3, 1, 64) for layers in (4, 16)),
    *(_case("llama-2048", layers, 1, 1, 64, lora=_LORA) for layers in (4, 16)),
    _case("llama-2048", 16, 3, 1, 64, lora=_LORA),
    _case("gpt2-1600", 16, 1, 1, 64),
    *(_case("llama-2048", layers, 3, 1, 64, world_size=2) for layers in (4, 16)),
    *(_case("llama-2048", layers, 3, 1, 64, lora=_LORA, world_size=2) for layers in (4, 16)),
    *(_case("llama-2048", layers, 1, 1, 64, world_size=2) for layers in (4, 16)),
    *(_case("llama-2048", layers, 2, 1, 64, world_size=2) for layers in (16,)),
    _case("llama-2048", 16, 3, 1, 64, activation_checkpointing=True, world_size=2),
]
CAPPED = {"llama-4096.l6.z1.b4.s2048", "llama-4096.l6.z1.b4.s2048.lora", "llama-4096.l6.z1.b1.s8192ck",
          "llama-2048.l16.z1.b4.s2048", "qwen2-896.l16.z1.b4.s2048", "llama-4096.l6.z3.b4.s2048"}  # fmt: skip
ABOVE_MIB = (4096, 2048, 1024, 512, 256)


def _kind(name: str) -> str:
    plain = name.lower()
    return next((kind for kind, words in _KINDS if any(word in plain for word in words)), "elementwise")


def _profiled(action: Any) -> dict[str, Any]:
    """GPU seconds of one action by kind of kernel, and the longest kernels by name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        action()
        torch.cuda.synchronize()
    seconds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in found.events():
        spent = event.device_time * 1e-6
        if spent <= 0:
            continue
        seconds[_kind(event.name)] += spent
        names[event.name[:90]][0] += spent
        names[event.name[:90]][1] += 1
    longest = sorted(names.items(), key=lambda item: -item[1][0])[:14]
    return {
        "kernels": sum(int(count) for _, count in names.values()),
        "seconds": {kind: round(value, 7) for kind, value in seconds.items()},
        "longest": [[name, round(spent, 7), int(count)] for name, (spent, count) in longest],
    }


def measure(case: Mapping[str, Any], capped: bool) -> dict[str, Any]:
    """One case; see the module."""
    import deepspeed
    import torch

    from benchmarks.measure.models import build, make_batch, training_dtype

    torch.manual_seed(1)
    model = build(case)
    trainable = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trainable, config=case["deepspeed_config"]
    )
    dtype = training_dtype(case["deepspeed_config"])
    batch = make_batch(case, model, dtype)
    held: dict[str, Any] = {}

    def forward() -> None:
        held["loss"] = engine(**batch).loss

    def backward() -> None:
        engine.backward(held.pop("loss"))

    phases = {"forward": forward, "backward": backward, "step": engine.step}

    def step() -> float:
        start = time.perf_counter()
        for action in phases.values():
            action()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    together = [step() for _ in range(8)]
    alone = defaultdict(list)
    for _ in range(4):
        for name, action in phases.items():
            start = time.perf_counter()
            action()
            launched = time.perf_counter()
            torch.cuda.synchronize()
            alone[name].append((time.perf_counter() - start, launched - start))
    peak = torch.cuda.max_memory_allocated()
    row: dict[str, Any] = {
        "params": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters()),
        "trainable_params": sum(getattr(p, "ds_numel", p.numel()) for p in trainable),
        "step_seconds": round(statistics.median(together), 6),
        "phase_seconds": {n: round(statistics.median(s for s, _ in found), 6) for n, found in alone.items()},
        "host_seconds": {n: round(statistics.median(s for _, s in found), 6) for n, found in alone.items()},
        "profiled": {name: _profiled(action) for name, action in phases.items()},
        "peak_allocated_bytes": peak,
        "between_steps_bytes": torch.cuda.memory_allocated(),
    }
    return row | {"capped": _capped(step, peak) if capped else []}


def _capped(step: Callable[[], float], peak: int) -> list[dict[str, Any]]:
    """Steps on less and less memory above the peak, until one runs out of it."""
    import torch

    rows = []
    total = torch.cuda.mem_get_info()[1]
    for above in ABOVE_MIB:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, (peak + above * MIB) / total))
        try:
            step()
            before = torch.cuda.memory_stats()["num_alloc_retries"]
            seconds = [round(step(), 5) for _ in range(5)]
        except torch.OutOfMemoryError:
            break
        retries = torch.cuda.memory_stats()["num_alloc_retries"] - before
        reserved = torch.cuda.max_memory_reserved()
        rows.append({"above_peak_mib": above, "step_seconds": seconds, "alloc_retries": retries,
                     "peak_reserved_bytes": reserved})  # fmt: skip
    torch.cuda.set_per_process_memory_fraction(1.0)
    return rows


def remap(size_mib: int, block_mib: int, rounds: int = 5) -> dict[str, Any]:
    """Seconds to give back and to map ``size_mib`` in blocks, as the allocator does it in a retry."""
    import torch

    def fill() -> list[Any]:
        return [torch.empty(block_mib * MIB, dtype=torch.uint8, device="cuda")
                for _ in range(size_mib // block_mib)]  # fmt: skip

    held = fill()
    given_back, mapped, reused = [], [], []
    for _ in range(rounds):
        del held
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.cuda.empty_cache()
        middle = time.perf_counter()
        held = fill()
        end = time.perf_counter()
        del held
        held = fill()
        given_back.append(middle - start)
        mapped.append(end - middle)
        reused.append(time.perf_counter() - end)
    del held
    torch.cuda.empty_cache()
    return {
        "size_mib": size_mib,
        "block_mib": block_mib,
        "given_back_seconds": round(statistics.median(given_back), 6),
        "mapped_seconds": round(statistics.median(mapped), 6),
        "from_cache_seconds": round(statistics.median(reused), 6),
    }


def remaps() -> Iterator[dict[str, Any]]:
    """The allocator alone: with expandable segments and without; several processes on one GPU and on many."""
    import torch

    count = torch.cuda.device_count()
    expandable = "expandable_segments:True"
    plans = [(expandable, 1, 1, 16), (expandable, 1, 1, 128), ("", 1, 1, 16), ("", 1, 1, 128)]
    plans += [(expandable, processes, 1, 64) for processes in (2, 4, 8)]
    plans += [(expandable, count, count, 64)] if count > 1 else []
    for conf, processes, spread, block in plans:
        command = [sys.executable, "-m", "benchmarks.measure.kernels", "--remap", "8192", str(block)]
        started = []
        for index in range(processes):
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": conf,
                           "CUDA_VISIBLE_DEVICES": str(index % spread)}  # fmt: skip
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        texts = [process.communicate()[0] for process in started]
        found = [json.loads(text.splitlines()[-1]) for text in texts if text.strip()]
        yield {
            "id": f"remap.{'expandable' if conf else 'plain'}.p{processes}.g{spread}.{block}",
            "processes": processes,
            "gpus": spread,
            **{key: statistics.median(row[key] for row in found) for key in found[0]},
        }


def one(name: str) -> dict[str, Any]:
    """The row of a case, measured in this process."""
    import deepspeed

    from benchmarks.measure.meter import versions

    deepspeed.init_distributed()
    case = next(case for case in CASES if case["id"] == name)
    keys = (
        "world_size",
        "hf_config",
        "deepspeed_config",
        "micro_batch",
        "seq_len",
        "activation_checkpointing",
        "lora",
    )
    try:
        row = measure(case, name in CAPPED)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"id": name, **{key: case[key] for key in keys}, **row, "versions": versions()}


def main() -> int:
    """Measure, a row at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds it")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after so many")
    parser.add_argument("--remap", type=int, nargs=2, metavar=("MIB", "BLOCK"), help="print one remap")
    parser.add_argument("--case", help="print the row of one case")
    options = parser.parse_args()
    if options.remap or options.case:
        import torch

        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        torch.zeros(1, device="cuda")
        print(json.dumps(remap(*options.remap) if options.remap else one(options.case)))
        return 0
    started = time.perf_counter()

    def keep(row: Mapping[str, Any]) -> None:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{time.perf_counter() - started:6.1f} s  {row['id']} {row.get('error', '')}", flush=True)

    for row in remaps() if "remap".startswith(options.only or "remap") else ():
        keep(row)
    expandable = "expandable_segments:True"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": expandable, "PYTORCH_ALLOC_CONF": expandable}
    for case in CASES:
        if options.only not in case["id"] or time.perf_counter() - started > options.seconds:
            continue
        command = [sys.executable, "-m", "benchmarks.measure.kernels", "--case", case["id"]]
        ranks = []
        for rank in range(case["world_size"]):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case["world_size"]),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}  # fmt: skip
            ranks.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, **variables})
            )
        texts = [rank.communicate()[0] for rank in ranks]
        lines = [line for line in texts[0].splitlines() if line.startswith("{")]
        code = ranks[0].returncode
        keep(json.loads(lines[-1]) if lines else {"id": case["id"], "error": f"ended with {code}"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
