"""What a host takes to launch a Triton function, beside PyTorch's own operators and the host's probe.

    python -m benchmarks.measure.triton_launches >> triton-launches.jsonl    # on a GPU machine with Triton

Microseconds of one call in a loop, the middle of twenty: functions of 4 and of 14 arguments, ``x * y`` and
``x.add_(y)``; ``factor``: the host's, by its probe right after.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from zerokit.doctor.host_probe import HostProbe
from zerokit.timing.host_speed import MODEL, speed_of

CALLS, WARM, TIMES = 300, 20, 20


@triton.jit
def four_arguments(source, target, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Copy."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)


@triton.jit
def fourteen_arguments(  # type: ignore[no-untyped-def]
    a, a_row, b, b_row, c, c_row, d, d_row, size, epsilon, offset, casting: tl.constexpr,
    flag: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """As many as the kernels of libraries have: tensors with their strides, and constants."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(b + at, tl.load(a + at, mask=at < size) * epsilon + offset, mask=at < size)


def microseconds(call: Callable[[], object]) -> float:
    """Of one call, the GPU not waited for."""
    for _ in range(WARM):
        call()
    took = []
    for _ in range(TIMES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        took.append((time.perf_counter() - began) / CALLS * 1e6)
    return round(statistics.median(took), 2)


def main() -> None:
    """One line."""
    x, y = (torch.randn(4096, device="cuda") for _ in range(2))
    found: dict[str, object] = {
        "four_arguments": microseconds(lambda: four_arguments[(4,)](x, y, 4096, BLOCK=1024)),
        "fourteen_arguments": microseconds(
            lambda: fourteen_arguments[(4,)](
                x, x.stride(0), y, y.stride(0), x, 1, y, 1, 4096, 1e-6, 1.0, casting=1, flag=True, BLOCK=1024
            )
        ),
        "multiplied": microseconds(lambda: x * y),
        "added_in_place": microseconds(lambda: x.add_(y)),
    }
    probe = HostProbe(torch.device("cuda", 0), model_only=True)
    rounds = [float(probe.round()[MODEL]) for _ in range(12)]
    found["factor"] = round(speed_of({MODEL: rounds}, "probe").factor, 4)
    found["versions"] = {
        "torch": torch.__version__, "triton": triton.__version__, "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
