"""What this host takes for each kind of work of a training script: Python, operators, memory, CPU Adam.

    python -m benchmarks.measure.host_parts -o PARTS.json [--seconds 30] [--device cuda]

Every round times each kind once, so that a slow second touches all of them; the middle of the rounds is what
comes out, in seconds of one. ``memory`` and ``adam`` hold, by number of threads, bytes and weights a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zerokit.doctor.host_probe import HostProbe

Work = tuple[Callable[[], Any], int]
_ELEMENTS = 50_000_000
_ADAM_WEIGHTS = 100_000_000
_LAYERS = 50


class _Node:
    def __init__(self) -> None:
        self.value = 1
        self.next = self
        self.seen: dict[int, int] = {}

    def visit(self, number: int) -> int:
        self.seen[number & 255] = number
        return len(self.seen)

    @property
    def named(self) -> int:
        return self.value


class _Subclass(torch.Tensor):
    pass


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def _repeat(do: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        do()


def python_work() -> dict[str, Work]:
    """Without torch's operators."""
    node = _Node()
    plain, hooked = torch.nn.Identity(), torch.nn.Identity()
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    hooked.register_forward_hook(lambda module, inputs, output: None)
    values = list(range(100))
    options = {f"option_{number}": number for number in range(8)}

    def attributes() -> None:
        node.next.next.next.next.next.next.next.next.next.value  # noqa: B018

    def generator() -> None:
        for _ in (value for value in values):
            pass

    def keywords(**given: int) -> int:
        return given["option_3"]

    def checks() -> None:
        for value in (node, plain, values, options):
            isinstance(value, torch.nn.Module)

    return {
        "ten attributes": (attributes, 2000),
        "call of a method": (lambda: node.visit(7), 2000),
        "property": (lambda: node.named, 2000),
        "100 values of a generator": (generator, 100),
        "call with 8 keywords": (lambda: keywords(**options), 2000),
        "4 isinstance": (checks, 2000),
        "context manager": (lambda: _nothing().__enter__(), 1000),
        "module call": (partial(plain, 1), 1000),
        "module call with two hooks": (partial(hooked, 1), 1000),
    }


def tensor_work(device: torch.device) -> dict[str, Work]:
    """With torch's operators, and the CUDA runtime where there is a GPU."""
    plain = torch.randn(64, 64, device=device, dtype=torch.bfloat16)
    recorded = plain.clone().requires_grad_()
    subclass = plain.clone().as_subclass(_Subclass)
    chained = recorded
    for _ in range(_LAYERS):
        chained = _Doubled.apply(chained)  # type: ignore[no-untyped-call]
    total = chained.sum()
    work: dict[str, Work] = {
        "operator": (lambda: plain + plain, 200),
        "operator of a subclass": (lambda: subclass + subclass, 200),
        "empty": (lambda: torch.empty(64, device=device), 200),
        "autograd function": (lambda: _Doubled.apply(recorded), 200),  # type: ignore[no-untyped-call]
        f"backward of {_LAYERS} autograd functions": (
            lambda: torch.autograd.grad(total, recorded, retain_graph=True), 1,
        ),
        "item": (lambda: plain[0, 0].item(), 50),
    }  # fmt: skip
    if device.type != "cuda":
        return work
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    pinned, pageable = torch.zeros(1024).pin_memory(), torch.zeros(1024)
    small = torch.zeros(1024, device=device)
    return work | {
        "record event": (event.record, 200),
        "current stream": (torch.cuda.current_stream, 200),
        "wait for a stream": (lambda: stream.wait_stream(torch.cuda.current_stream()), 200),
        "record stream": (lambda: plain.record_stream(stream), 200),
        "synchronize": (torch.cuda.synchronize, 100),
        "copy from pinned memory": (lambda: small.copy_(pinned, non_blocking=True), 100),
        "copy from pageable memory": (lambda: small.copy_(pageable, non_blocking=True), 100),
        "copy to pinned memory": (lambda: pinned.copy_(small, non_blocking=True), 100),
        "pin 4 KiB": (lambda: torch.zeros(1024).pin_memory(), 20),
    }


def _once(work: Work) -> float:
    do, times = work
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    _repeat(do, times)
    took = (time.perf_counter() - began) / times
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return took


def rounds(device: torch.device, seconds: float) -> dict[str, float]:
    """The middle of all rounds."""
    work = python_work() | tensor_work(device)
    probe = HostProbe(device)
    found: dict[str, list[float]] = {}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found.get("item", ())) < 3:
        took = {name: _once(task) for name, task in work.items()}
        took |= {f"probe: {name}": duration for name, duration in probe.round().items()}
        for name, duration in took.items():
            found.setdefault(name, []).append(duration)
    return {name: float(f"{statistics.median(duration[1:]):.4g}") for name, duration in found.items()}


def _rate(do: Callable[[], Any], amount: float, repeats: int = 4) -> float:
    do()
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        do()
        took.append(time.perf_counter() - began)
    return float(f"{amount / statistics.median(took):.4g}")


def memory_rates(device: torch.device) -> dict[str, float]:
    """Bytes a second, read and written, of what a step with offloaded states does on the host."""
    wide = torch.zeros(_ELEMENTS)
    half = torch.zeros(_ELEMENTS, dtype=torch.bfloat16)
    found = {
        "fp32 in place": _rate(lambda: wide.mul_(1.0), 8 * _ELEMENTS),
        "fp32 to bf16": _rate(lambda: half.copy_(wide), 6 * _ELEMENTS),
        "fp32 to fresh bf16": _rate(lambda: wide.to(torch.bfloat16), 6 * _ELEMENTS),
        "bf16 to fp32": _rate(lambda: wide.copy_(half), 6 * _ELEMENTS),
        "norm": _rate(lambda: wide.norm(2), 4 * _ELEMENTS),
    }
    if device.type == "cuda":
        pinned, there = half.pin_memory(), half.to(device)

        def copied(target: torch.Tensor, source: torch.Tensor) -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        found |= {
            "fp32 to pinned bf16": _rate(lambda: pinned.copy_(wide), 6 * _ELEMENTS),
            "pinned to GPU": _rate(lambda: copied(there, pinned), 2 * _ELEMENTS),
            "GPU to pinned": _rate(lambda: copied(pinned, there), 2 * _ELEMENTS),
            "pageable to GPU": _rate(lambda: copied(there, half), 2 * _ELEMENTS),
        }
    return found


def adam_rate() -> float:
    """Weights a second of DeepSpeed's CPU Adam."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    weights = torch.nn.Parameter(torch.zeros(_ADAM_WEIGHTS))
    weights.grad = torch.ones(_ADAM_WEIGHTS)
    return _rate(DeepSpeedCPUAdam([weights]).step, _ADAM_WEIGHTS)


def _with_threads(device: torch.device) -> dict[str, Any]:
    """This process's rates, with the threads that OMP_NUM_THREADS gives it."""
    found: dict[str, Any] = {"memory": memory_rates(device)}
    try:
        found["adam"] = adam_rate()
    except Exception as error:  # whatever the operator's build ends with
        found["adam"] = None
        found["adam_error"] = str(error)[-300:]
    return found


def main() -> None:
    """Rounds in this process, rates in one of its own for each number of threads."""
    import subprocess
    import sys

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the rounds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, nargs="*", help="1, half and all of this host's cores")
    parser.add_argument("--rates", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.rates:
        options.output.write_text(json.dumps(_with_threads(device)))
        return
    cores = len(os.sched_getaffinity(0))
    found: dict[str, Any] = {"cores": cores, "seconds": rounds(device, options.seconds), "threads": {}}
    options.output.write_text(json.dumps(found))
    for threads in options.threads or sorted({1, max(1, cores // 2), cores}):
        part = options.output.with_suffix(f".{threads}")
        command = [sys.executable, "-m", "benchmarks.measure.host_parts", "--rates", "-o", str(part)]
        environment = dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}
        try:
            subprocess.run([*command, "--device", str(device)], env=environment, check=True, timeout=90)
            found["threads"][threads] = json.loads(part.read_text())
        except (subprocess.SubprocessError, OSError) as error:
            found["threads"][threads] = {"error": str(error)[-300:]}
        part.unlink(missing_ok=True)
        options.output.write_text(json.dumps(found))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
