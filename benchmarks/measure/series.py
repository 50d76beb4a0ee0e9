"""Step times of many cases in one start of the ranks, alone on their host, the host's probe before and after.

    python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.measure.series CASES.json -o ROWS.jsonl

For step times of bare loops: imports and communicators are paid once, so that eight cases of 40 steps fit in
the minutes that one start each would take. Memory of a case is its own (the allocator is emptied between
them), but its first step finds kernels loaded: take memory from ``run`` or ``launch``. Cases are those of
``case.py`` (``world_size`` is the number of ranks started; cases with another are left out). A step is timed
on the host without a wait for the GPU, as a training script's own steps run; the last waits for it.
``--trace N``: a Chrome trace of two more steps of the first N cases, beside the rows.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import itertools
import json
import os
import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import case as cases
from benchmarks.measure.models import build, make_batch, training_dtype
from zerokit.doctor.host_probe import probe_host
from zerokit.timing.host_speed import speed_of

WARM_UP = 3
"""Steps that are not timed: kernels are chosen in the first, and ZeRO-3 prefetches from its third forward."""

PROBE_SECONDS = 4.0


class Training:
    """One case's engine and batch."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        import deepspeed

        torch.manual_seed(1234 + int(os.environ["RANK"]))
        self.case = case
        model = build(case)
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=trainable, config=case["deepspeed_config"]
        )
        self.mean = 0.0
        self.batch = make_batch(case, model, training_dtype(case["deepspeed_config"]))

    def step(self) -> None:
        """One optimizer step."""
        for _ in range(self.case["gradient_accumulation"]):
            self.engine.backward(self.engine(**self.batch).loss)
            self.engine.step()

    def seconds(self, steps: int) -> list[float]:
        """Seconds between the ends of steps, after the warm-up."""
        for _ in range(WARM_UP):
            self.step()
        torch.cuda.synchronize()
        torch.distributed.barrier()
        ends = [time.perf_counter()]
        for _ in range(steps):
            self.step()
            ends.append(time.perf_counter())
        torch.cuda.synchronize()
        whole = time.perf_counter() - ends[0]
        found = [round(after - before, 5) for before, after in itertools.pairwise(ends)]
        self.mean = whole / steps
        return found

    def trace(self, place: Path) -> None:
        """A compressed Chrome trace of two steps."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            for _ in range(2):
                self.step()
            torch.cuda.synchronize()
        if os.environ["RANK"] == "0":
            plain = place.with_suffix("")
            recorded.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(place, "wb") as packed:
                shutil.copyfileobj(source, packed)
            plain.unlink()

    def end(self) -> None:
        """Give the memory back."""
        self.engine.destroy()
        del self.engine, self.batch
        gc.collect()
        torch.cuda.empty_cache()


def _probe(device: torch.device) -> dict[str, list[float]]:
    """The host's probe on rank 0, the others waiting."""
    found = probe_host(device, PROBE_SECONDS) if os.environ["RANK"] == "0" else {}
    torch.distributed.barrier()
    return found


def _host(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> dict[str, Any]:
    speed = speed_of({name: [*took, *after[name]] for name, took in before.items()}, "probe")
    return {
        "host_factor": round(speed.factor, 4),
        "host_factor_before_and_after": [round(speed_of(each, "").factor, 4) for each in (before, after)],
    }


def run(case: Mapping[str, Any], steps: int, trace: Path | None) -> dict[str, Any]:
    """One case's row; a case that fails has its error in its row."""
    try:
        training = Training(case)
        seconds = training.seconds(steps)
        row = {
            "params": training.parameters,
            "step_seconds": seconds,
            "step_seconds_median": statistics.median(seconds),
            "step_seconds_mean": round(training.mean, 5),
            "peak_allocated_bytes": [torch.cuda.max_memory_allocated()],
        }
        if trace is not None:
            training.trace(trace)
        training.end()
    except torch.OutOfMemoryError as error:
        return {"error": str(error).splitlines()[0]}
    return row


def main() -> None:
    """Every case in turn; rank 0 writes the rows."""
    import deepspeed
    import transformers

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--trace", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="no case is started after that")
    options = parser.parse_args()
    world, first = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    deepspeed.init_distributed()
    versions = {
        "torch": torch.__version__, "transformers": transformers.__version__,
        "deepspeed": deepspeed.__version__, "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip
    todo = [
        case for each in cases.read(options.cases) if (case := cases.complete(each))["world_size"] == world
    ]
    began, before = time.monotonic(), _probe(device)
    for number, case in enumerate(todo):
        late = torch.tensor(float(time.monotonic() - began > options.seconds), device=device)
        torch.distributed.broadcast(late, 0)
        if late.item():
            break
        torch.cuda.reset_peak_memory_stats()
        trace = options.output.with_name(f"{case['id']}.json.gz") if number < options.trace else None
        row = run(case, options.steps, trace)
        after = _probe(device)
        if first:
            about = {"timed_alone": True, "ok": "error" not in row, "versions": versions}
            full = {**case, **row, **_host(before, after), **about}
            with options.output.open("a", encoding="utf-8") as out:
                out.write(json.dumps(full) + "\n")
            shown = row.get("step_seconds_median") or row.get("error")
            print(f"{case['id']:32} host {full['host_factor']:.3f}  {shown}", flush=True)
        before = after
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
