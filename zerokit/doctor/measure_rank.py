"""One rank of ``zerokit doctor --measure``: ``python -m zerokit.doctor.measure_rank JSON``.

All ranks measure the same thing at the same time, because GPUs of one host share its links.
Rank 0 writes what is known after each part, so that a part that does not end costs no other.
This is the only module of the doctor that imports torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerokit.doctor.host_probe import probe_host
from zerokit.timing.host_speed import speed_of

MIB = 1 << 20
_SECONDS_PER_RATE = 0.5
_WARM_UP = 3
_SLOW_SECONDS = 1.0
"""Work that takes longer is timed once, after a single warm-up."""
_ADAM_BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and two moments."""


class Rank:
    """This process's device, and how to time work on it."""

    def __init__(self, rank: int, world: int, device: str) -> None:
        self.rank, self.world, self.on_gpu = rank, world, device == "cuda"
        self.device = torch.device(f"cuda:{rank}" if self.on_gpu else "cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))

    def wait(self) -> None:
        """Until the GPU has done what it was given; a CPU rank has."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def together(self) -> None:
        """Wait for all ranks."""
        self.wait()
        dist.barrier()
        self.wait()

    def seconds(self, work: Callable[[], Any], *, by_itself: bool = False) -> float:
        """Seconds one ``work`` takes: repeated as often on every rank, after a warm-up."""
        first = self._timed(work, 1)
        if (first if by_itself else self.most(first)) > _SLOW_SECONDS:
            return self._timed(work, 1)
        for _ in range(_WARM_UP - 1):
            work()
        if not by_itself:
            self.together()
        once = self._timed(work, 1)
        # the slowest rank decides, so that collectives are called equally often
        repeats = torch.tensor(
            [max(2, min(200, round(_SECONDS_PER_RATE / max(once, 1e-6))))], device=self.device
        )
        if not by_itself:
            dist.all_reduce(repeats, op=dist.ReduceOp.MIN)
        return self._timed(work, int(repeats.item()))

    def _timed(self, work: Callable[[], Any], repeats: int) -> float:
        self.wait()
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        self.wait()
        return (time.perf_counter() - started) / repeats

    def mean(self, value: float) -> float:
        """The mean over all ranks."""
        return self._reduced(value, dist.ReduceOp.SUM) / self.world

    def most(self, value: float) -> float:
        """The largest of all ranks'."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def _reduced(self, value: float, how: dist.ReduceOp.RedOpType) -> float:
        values = torch.tensor(
            [value], dtype=torch.float64 if not self.on_gpu else torch.float32, device=self.device
        )
        dist.all_reduce(values, op=how)
        return float(values.item())


def matmul(rank: Rank) -> tuple[float, str]:
    """FLOP/s of a large square product, and in which precision."""
    if rank.on_gpu:
        precision = "bf16" if torch.cuda.get_device_capability()[0] >= 8 or torch.version.hip else "fp16"
        side = 8192
    else:
        precision, side = "fp32", 2048
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    left, right = (torch.randn(side, side, device=rank.device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    # the layout of nn.Linear: input times the transposed weight
    seconds = rank.seconds(lambda: torch.mm(left, right.t(), out=out))
    return 2 * side**3 / rank.mean(seconds), precision


def memory_copy(rank: Rank) -> float:
    """Bytes per second, read and written together."""
    size = (1024 if rank.on_gpu else 256) * MIB
    source = torch.ones(size, dtype=torch.uint8, device=rank.device)
    target = torch.empty_like(source)
    return 2 * size / rank.mean(rank.seconds(lambda: target.copy_(source)))


def pinned_copies(rank: Rank) -> tuple[float | None, float | None]:
    """Bytes per second from and to pinned host memory, all GPUs at once."""
    if not rank.on_gpu:
        return None, None
    size = 256 * MIB
    host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device=rank.device)
    to_device = rank.mean(rank.seconds(lambda: device.copy_(host, non_blocking=True)))
    to_host = rank.mean(rank.seconds(lambda: host.copy_(device, non_blocking=True)))
    return size / to_device, size / to_host


def collectives(rank: Rank, budget_seconds: float) -> tuple[list[dict[str, Any]], str | None]:
    """Bus bandwidth of each collective over message sizes (nccl-tests' definition), and what is missing.
    Largest messages first, since predictions count with them; none is begun after ``budget_seconds``."""
    if rank.world < 2:
        return [], None
    began, missing = time.perf_counter(), None
    sizes = (1024, 256, 64, 16, 4, 1) if rank.on_gpu else (16, 4, 1)
    operations = ("all_reduce", "all_gather", "reduce_scatter") if rank.on_gpu else ("all_reduce",)
    points: list[dict[str, Any]] = []
    for size in sizes:
        if points and rank.most(time.perf_counter() - began) > budget_seconds:
            missing = f"messages of {size} MiB and less were not begun after {budget_seconds:g} s"
            break
        count = size * MIB // 2 // rank.world * rank.world
        buffer = torch.ones(count, dtype=torch.bfloat16, device=rank.device)
        part = torch.ones(count // rank.world, dtype=torch.bfloat16, device=rank.device)
        work: dict[str, Callable[[], Any]] = {
            "all_reduce": partial(dist.all_reduce, buffer),
            "all_gather": partial(dist.all_gather_into_tensor, buffer, part),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, part, buffer),
        }
        for name in operations:
            seconds = rank.mean(rank.seconds(work[name]))
            share = (2 if name == "all_reduce" else 1) * (rank.world - 1) / rank.world
            rate = share * 2 * count / seconds
            points.append({"operation": name, "message_bytes": 2 * count, "bus_bytes_per_second": rate})
    return sorted(points, key=lambda point: point["message_bytes"]), missing


def _in_host_memory(rank: Rank, work: Callable[[], Any]) -> float:
    """Seconds of a rank's share of elementwise work, with as many cores as each rank has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // rank.world))
    seconds = rank.mean(rank.seconds(work))
    torch.set_num_threads(threads)
    return seconds


def host_memory(rank: Rank, size: int) -> float:
    """Bytes per second, read and written, of all ranks' elementwise work in host memory together, on tensors
    of ``size`` bytes in all, more than the processor's caches hold.

    Pinned, as gradients of offloaded states are: such memory is all of one node of the processor's, and
    reaches 190 GB/s where memory that all cores touched first reaches 460.
    """
    size = size // rank.world // 4 * 4
    values = torch.ones(size // 4, pin_memory=rank.on_gpu)
    return rank.world * 2 * size / _in_host_memory(rank, lambda: values.mul_(1.0))


def host_casts(rank: Rank, size: int) -> float:
    """Bytes per second, read and written, of all ranks' casts from fp32 (``size`` bytes in all, more than the
    processor's caches hold) to pinned bf16 in host memory.

    So the weights of an offloaded step go back, at a third to a half of what work in place reaches.
    """
    count = size // rank.world // 4
    source = torch.ones(count)
    target = torch.empty(count, dtype=torch.bfloat16, pin_memory=rank.on_gpu)
    return rank.world * 6 * count / _in_host_memory(rank, lambda: target.copy_(source))


def cpu_adam(parameters: int) -> tuple[float, str]:
    """Parameters per second of one fp32 Adam step on all cores, and whose Adam it was."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    weights = torch.nn.Parameter(torch.zeros(parameters))
    weights.grad = torch.ones(parameters)
    kind = "deepspeed"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed greets on standard output
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            optimizer: Any = DeepSpeedCPUAdam([weights])
    except Exception as error:  # whatever the operator's build ends with
        print(f"DeepSpeed's CPU Adam cannot be used ({error}); torch's is measured", file=sys.stderr)
        kind = "torch"
        optimizer = torch.optim.AdamW([weights], fused=True)
    rank = Rank(0, 1, "cpu")
    return parameters / rank.seconds(optimizer.step, by_itself=True), kind


def _parts(rank: Rank, order: Mapping[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    """What each part of ``zerokit.doctor.measure.PARTS`` finds, by the names of ``Measured``."""
    adam_bytes = _ADAM_BYTES_PER_PARAMETER * order["adam_parameters"]

    def product() -> dict[str, Any]:
        flops, precision = matmul(rank)
        return {"matmul_flops": flops, "matmul_precision": precision}

    def pinned() -> dict[str, Any]:
        to_device, to_host = pinned_copies(rank)
        return {"host_to_device_bytes_per_second": to_device, "device_to_host_bytes_per_second": to_host}

    def host() -> dict[str, Any]:
        if not rank.on_gpu:
            return {}
        rank.together()
        by_rank: list[Any] = [None] * rank.world
        dist.all_gather_object(by_rank, probe_host(rank.device))
        ranks = [speed_of(rounds) for rounds in by_rank]
        every = {name: [took for rounds in by_rank for took in rounds[name]] for name in by_rank[0]}
        speed = speed_of(every)
        return {
            "host_factor": speed.factor, "host_factor_low": speed.low, "host_factor_high": speed.high,
            "host_factor_by_rank": [of_one.factor for of_one in ranks],
        }  # fmt: skip

    def links() -> dict[str, Any]:
        points, missing = collectives(rank, order["collective_seconds"])
        return {"collectives": points, "not_measured": {"collectives": missing} if missing else {}}

    def adam() -> dict[str, Any]:
        rank.together()
        dist.destroy_process_group()
        if rank.rank:
            return {}
        if rank.on_gpu:
            torch.cuda.empty_cache()
        rate, kind = cpu_adam(order["adam_parameters"])
        return {"cpu_adam_parameters_per_second": rate, "cpu_adam_kind": kind}

    return {
        "matrix product": product,
        "memory": lambda: {"memory_copy_bytes_per_second": memory_copy(rank)},
        "pinned copies": pinned,
        "host speed": host,
        "host memory": lambda: {"host_memory_bytes_per_second": host_memory(rank, adam_bytes)},
        "casts in host memory": lambda: {"host_cast_bytes_per_second": host_casts(rank, adam_bytes)},
        "collectives": links,
        "CPU Adam": adam,
    }


def main() -> None:
    """Measure as the argument says; rank 0 writes the result beside it."""
    # an operator that is being compiled gives its lock back (torch.utils.cpp_extension's ``finally``)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    order = json.loads(sys.argv[1])
    rank = Rank(order["rank"], order["world"], order["device"])
    dist.init_process_group(
        "nccl" if rank.on_gpu else "gloo",
        init_method=f"file://{order['store']}",
        rank=rank.rank,
        world_size=rank.world,
    )
    values = {
        "device_name": torch.cuda.get_device_name() if rank.on_gpu else "CPU",
        "torch_version": torch.__version__,
    }
    rank.together()  # connections are made here
    done: list[str] = []
    parts = _parts(rank, order)
    _write(order, values, done)
    for name in order["parts"]:
        values |= parts[name]()
        done.append(name)
        _write(order, values, done)


def _write(order: Mapping[str, Any], values: Mapping[str, Any], done: list[str]) -> None:
    if order["rank"] == 0:
        path = Path(order["result"])
        path.with_suffix(".new").write_text(json.dumps({"done": done, "values": values}), encoding="utf-8")
        path.with_suffix(".new").replace(path)  # a reader sees the old one or the whole new one


if __name__ == "__main__":
    main()
