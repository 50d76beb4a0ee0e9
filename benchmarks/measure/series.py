"""Step times of bare loops, one case at a time alone on its host, the host's probe right before its steps.

    python -m benchmarks.measure.series CASES.json -o ROWS.jsonl --gpus 2 [--steps 25]

The ranks of every case are started first and wait after their imports, while DeepSpeed's optimizer is
compiled, so that a case takes the seconds of its own steps and nothing else runs beside it. Cases are those
of ``case.py``; those with a larger ``world_size`` than ``--gpus`` are left out. All ranks probe the host at
once for some seconds before the first step; ``host_factor`` is the middle of all rounds of all ranks.
``--trace N``: a Chrome trace of two more steps of the first N cases, beside the rows.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import append, options_of
from benchmarks.measure import case as cases
from benchmarks.measure.models import build, device, make_batch, training_dtype
from zerokit.doctor.host_probe import probe_host
from zerokit.timing.host_speed import MODEL, speed_of

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
"""Imports and the compiler may take no longer."""
WARM_UP = 3
"""Forward passes before the timed steps, and two steps at least: kernels are chosen in
the first, and ZeRO-3 prefetches from its third forward."""
LEAST_STEPS = 5
"""That are timed, however long they take."""

PROBE_SECONDS = 4.0
COMPILE = "from deepspeed.ops.op_builder import FusedAdamBuilder; FusedAdamBuilder().load()"


class OfDeepSpeed:
    """What trains a case: an engine of its configuration."""

    def __init__(self, case: Mapping[str, Any], model: Any, trainable: list[Any]) -> None:
        import deepspeed

        self.model, *_ = deepspeed.initialize(
            model=model, model_parameters=trainable, config=case["deepspeed_config"]
        )

    def micro_batch(self, loss: Callable[[], Any], last: bool) -> None:
        """Forward and backward; the optimizer's step after the ``last`` one, which the engine counts too."""
        del last
        self.model.backward(loss())
        self.model.step()


class OfAccelerate:
    """The same with FSDP2 of its plugin, or without an engine, as a Trainer has it."""

    def __init__(self, case: Mapping[str, Any], model: Any, trainable: list[Any]) -> None:
        from accelerate import Accelerator, FullyShardedDataParallelPlugin

        plugin = None
        if case["world_size"] == 1:
            os.environ.pop("LOCAL_RANK")  # as without a launcher: the model is not wrapped
        if case["engine"] == "fsdp2":
            plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2,
                auto_wrap_policy="transformer_based_wrap",
                activation_checkpointing=bool(case["activation_checkpointing"]),
                state_dict_type="SHARDED_STATE_DICT",
                **(case["fsdp2"] or {}),
            )
        self.accelerator = Accelerator(
            mixed_precision="bf16",
            gradient_accumulation_steps=case["gradient_accumulation"],
            fsdp_plugin=plugin,
        )
        optimizer = torch.optim.AdamW(trainable, lr=1e-5, fused=True)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def micro_batch(self, loss: Callable[[], Any], last: bool) -> None:
        """Forward and backward; clipping and the optimizer's step after the ``last`` one."""
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(loss())
            if last:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()


class Training:
    """One case's engine and batch."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        torch.manual_seed(1234 + int(os.environ["RANK"]))
        self.case = case
        model = build(case, device())
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        of_engine = OfDeepSpeed if case["engine"] == "deepspeed" else OfAccelerate
        self.engine = of_engine(case, model, trainable)
        rows = case["micro_batch"] * (2 if case["pairs"] else 1)
        batch = {**case, "micro_batch": rows}
        self.batch = make_batch(batch, model, training_dtype(case["deepspeed_config"]))

    def loss(self) -> Any:
        """A micro-batch's: the model's own, or DPO's (arXiv 2305.18290) against it without adapters."""
        if not self.case["pairs"]:
            return self.engine.model(**self.batch).loss
        plain = self.engine.accelerator.unwrap_model(self.engine.model)
        with torch.no_grad(), plain.disable_adapter():
            reference = self._log_probability()
        chosen, rejected = (self._log_probability() - reference).chunk(2)
        return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()

    def _log_probability(self) -> Any:
        """Of each row."""
        tokens = self.batch["input_ids"]
        logits = self.engine.model(input_ids=tokens).logits.float()
        following = torch.nn.functional.pad(tokens, (0, 1), value=-100)[:, 1:]
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
        return -each.view(tokens.shape).sum(1)

    def step(self) -> None:
        """One optimizer step."""
        for micro in range(self.case["gradient_accumulation"], 0, -1):
            self.engine.micro_batch(self.loss, last=micro == 1)

    def seconds(self, steps: int, limit_seconds: float) -> list[float]:
        """Seconds of steps after the warm-up, each from where all ranks have done the one before; none more
        after ``limit_seconds``."""
        accumulation = self.case["gradient_accumulation"]
        for _ in range(max(2, -(-WARM_UP // accumulation))):
            self.step()
        found: list[float] = []
        first = time.perf_counter()
        late = torch.zeros(1, device=device())
        while len(found) < steps:
            late.fill_(len(found) >= LEAST_STEPS and time.perf_counter() - first > limit_seconds)
            torch.distributed.all_reduce(late)
            if late.item():
                break
            _settle()
            began = time.perf_counter()
            self.step()
            _settle()
            found.append(round(time.perf_counter() - began, 5))
        return found

    def trace(self, path: Path) -> None:
        """A compressed Chrome trace of two steps."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            for _ in range(2):
                self.step()
            torch.cuda.synchronize()
        if os.environ["RANK"] == "0":
            plain = path.with_suffix("")
            recorded.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(path, "wb") as packed:
                shutil.copyfileobj(source, packed)
            plain.unlink()


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _host(rounds: Mapping[str, list[float]]) -> dict[str, Any]:
    """The host's speed, and the rounds of each rank."""
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, rounds)
    speed = speed_of({MODEL: [took for entry in every for took in entry[MODEL]]})
    return {
        "host_factor": round(speed.factor, 4),
        "host_factor_range": [round(entry, 4) for entry in (speed.low, speed.high) if entry],
        "rounds_before": [
            {name: [float(f"{took:.4g}") for took in entry] for name, entry in rank.items()} for rank in every
        ],
    }


def work(folder: Path, steps: int, limit_seconds: float, trace: Path | None) -> None:
    """One rank of one case: import, wait for ``go``, train; rank 0 writes ``row.json``."""
    import deepspeed
    import torch._dynamo  # not within zero.Init, whose tensors it takes for torch's own
    import transformers

    (folder / f"ready-{os.environ['RANK']}").touch()
    while not (folder / "go").exists():
        time.sleep(0.2)
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if on_gpu else "gloo"
    if case["engine"] == "deepspeed":
        deepspeed.init_distributed(backend)
    else:
        torch.distributed.init_process_group(backend)
    began = time.perf_counter()
    training = Training(case)
    torch.distributed.barrier()
    built = time.perf_counter()
    rounds = probe_host(device(), PROBE_SECONDS)
    seconds = training.seconds(steps, limit_seconds)
    spent = [round(built - began, 1), round(time.perf_counter() - built, 1)]
    row = {
        **case,
        "params": training.parameters,
        "step_seconds": seconds,
        "step_seconds_median": statistics.median(seconds),
        "step_seconds_mean": round(statistics.mean(seconds), 5),
        "building_and_training_seconds": spent,
        "peak_allocated_bytes": [torch.cuda.max_memory_allocated() if on_gpu else 0],
        "timed_alone": True,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "deepspeed": deepspeed.__version__,
            "gpu": torch.cuda.get_device_name() if on_gpu else "",
        },
    }
    row |= _host(rounds)
    if trace is not None:
        training.trace(trace)
    if os.environ["RANK"] == "0":
        (folder / "row.json").write_text(json.dumps(row), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # taking engine and process group down would cost more seconds than some cases


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
        command += ["--steps", str(options.steps), "--step-seconds", str(options.step_seconds)]
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
                    "WORLD_SIZE": str(case["world_size"]),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(29600 + number),
                },
            )
            for rank in range(case["world_size"])
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
    parser = options_of(__doc__)
    parser.add_argument("cases", type=Path, nargs="?")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--step-seconds", type=float, default=1e9, help="no more steps of a case after that")
    parser.add_argument("--only", nargs="+", default=[""], help="cases with one of these in their names")
    parser.add_argument("--trace", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="everything ends after that")
    parser.add_argument("--case-seconds", type=float, default=90.0, help="longest time of one case")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--trace-to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.steps, options.step_seconds, options.trace_to)
        return
    todo = [case for record in cases.read(options.cases) if (case := cases.complete(record))]
    todo = [case for case in todo if case["world_size"] <= options.gpus]
    todo = [case for case in todo if any(part in case["id"] for part in options.only)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="series-") as folder:
        waiting = [Waiting(case, at, Path(folder), options) for at, case in enumerate(todo)]
        try:
            compiling = subprocess.Popen([sys.executable, "-c", COMPILE], stdout=subprocess.DEVNULL)
            while compiling.poll() is None or not all(process.ready() for process in waiting):
                if time.monotonic() - began > min(START_SECONDS, options.seconds):
                    compiling.kill()
                    break
                time.sleep(0.2)
            print(f"all ready after {time.monotonic() - began:.0f} s", flush=True)
            for process in waiting:
                if time.monotonic() - began > options.seconds:
                    break
                left = began + options.seconds - time.monotonic()
                row = process.go(min(options.case_seconds, left))
                append(options.output, row)
                said = row.get("step_seconds_median") or row["error"][-500:]
                spent = row.get("building_and_training_seconds", "")
                print(f"{row['id']:32} host {row.get('host_factor')}  {said}  {spent}", flush=True)
        finally:
            for process in waiting:
                process.stop()


if __name__ == "__main__":
    main()
