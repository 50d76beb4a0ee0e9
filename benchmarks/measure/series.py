"""Step times of bare loops, one case at a time alone on its host, the host's probe before and after each.

    python -m benchmarks.measure.series CASES.json -o ROWS.jsonl --gpus 2 [--steps 25]

The ranks of every case are started first and wait after their imports, so that a case takes the seconds of
its own steps and nothing else runs beside it. Cases are those of ``case.py``; those with another
``world_size`` than ``--gpus`` are left out. A step is timed on the host without a wait for the GPU, as a
training script's own steps run; the mean over all of them waits for it.
``--trace N``: a Chrome trace of two more steps of the first N cases, beside the rows.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import case as cases
from benchmarks.measure.models import build, make_batch, training_dtype
from zerokit.doctor.host_probe import probe_host
from zerokit.timing.host_speed import speed_of

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 3
"""Steps that are not timed: kernels are chosen in the first, and ZeRO-3 prefetches from its third forward."""

PROBE_SECONDS = 3.0


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


def _host(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> dict[str, Any]:
    speed = speed_of({name: [*took, *after[name]] for name, took in before.items()}, "probe")
    return {
        "host_factor": round(speed.factor, 4),
        "host_factor_before_and_after": [round(speed_of(each, "").factor, 4) for each in (before, after)],
    }


def _probe(device: torch.device) -> dict[str, list[float]]:
    """The host's probe on rank 0, the others waiting."""
    found = probe_host(device, PROBE_SECONDS) if os.environ["RANK"] == "0" else {}
    torch.distributed.barrier()
    return found


def work(folder: Path, steps: int, trace: Path | None) -> None:
    """One rank of one case: import, wait for ``go``, train; rank 0 writes ``row.json``."""
    import deepspeed
    import transformers

    (folder / f"ready-{os.environ['RANK']}").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    deepspeed.init_distributed()
    before = _probe(device)
    training = Training(case)
    seconds = training.seconds(steps)
    row = {
        **case,
        "params": training.parameters,
        "step_seconds": seconds,
        "step_seconds_median": statistics.median(seconds),
        "step_seconds_mean": round(training.mean, 5),
        "peak_allocated_bytes": [torch.cuda.max_memory_allocated()],
        "timed_alone": True,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "deepspeed": deepspeed.__version__,
            "gpu": torch.cuda.get_device_name(),
        },
    }
    after = _probe(device)
    if trace is not None:
        training.trace(trace)
    if before:
        (folder / "row.json").write_text(json.dumps(row | _host(before, after)), encoding="utf-8")


class Waiting:
    """The ranks of a case, started and waiting."""

    def __init__(
        self, case: Mapping[str, Any], number: int, folder: Path, options: argparse.Namespace
    ) -> None:
        self.folder = folder / str(number)
        self.folder.mkdir()
        self.case = case
        (self.folder / "case.json").write_text(json.dumps(case), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.measure.series", "--work", str(self.folder)]
        command += ["--steps", str(options.steps)]
        if number < options.trace:
            command += ["--trace-to", str(options.output.absolute().with_name(f"{case['id']}.json.gz"))]
        self.log = (self.folder / "log").open("wb")
        self.ranks = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=self.log,
                stderr=subprocess.STDOUT,
                env=dict(os.environ)
                | {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(options.gpus),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(29600 + number),
                },
            )
            for rank in range(options.gpus)
        ]

    def ready(self) -> bool:
        """Whether all its ranks wait, or one has ended."""
        waits = all((self.folder / f"ready-{rank}").exists() for rank in range(len(self.ranks)))
        return waits or any(rank.poll() is not None for rank in self.ranks)

    def go(self, limit_seconds: float) -> dict[str, Any]:
        """Run it to its end; its row, with how it failed where it did."""
        (self.folder / "go").touch()
        end = time.monotonic() + limit_seconds
        while any(rank.poll() is None for rank in self.ranks) and time.monotonic() < end:
            if any(rank.poll() for rank in self.ranks):
                break
            time.sleep(0.1)
        self.stop()
        row = self.folder / "row.json"
        if row.exists():
            return json.loads(row.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
        tail = (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]
        return {**self.case, "error": tail}

    def stop(self) -> None:
        """End what still runs."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        self.log.close()


def main() -> None:
    """Start the ranks of every case, then let them run in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path, nargs="?")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--trace", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="no case is let go after that")
    parser.add_argument("--case-seconds", type=float, default=90.0, help="longest time of one case")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--trace-to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.steps, options.trace_to)
        return
    todo = [case for each in cases.read(options.cases) if (case := cases.complete(each))]
    todo = [case for case in todo if case["world_size"] == options.gpus]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="series-") as folder:
        waiting = [Waiting(case, at, Path(folder), options) for at, case in enumerate(todo)]
        try:
            while not all(each.ready() for each in waiting):
                time.sleep(0.2)
            print(f"all ready after {time.monotonic() - began:.0f} s", flush=True)
            for each in waiting:
                if time.monotonic() - began > options.seconds:
                    break
                row = each.go(options.case_seconds)
                with options.output.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
                said = row.get("step_seconds_median") or row["error"][-500:]
                print(f"{row['id']:32} host {row.get('host_factor')}  {said}", flush=True)
        finally:
            for each in waiting:
                each.stop()


if __name__ == "__main__":
    main()
