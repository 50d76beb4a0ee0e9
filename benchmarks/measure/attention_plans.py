"""What a length costs that attention has not met, by kernel: the first call beside the second.

    python -m benchmarks.measure.attention_plans >> attention-plans.jsonl    # on a GPU machine

Milliseconds of PyTorch's ``scaled_dot_product_attention`` in bf16 on 4 rows of 12 heads of 128, causal, the
middle of five lengths that are new to the process: ``forward`` and ``backward``, each the first and the
second time. ``chosen`` is what PyTorch takes by itself; ``deprioritized``: with
``TORCH_CUDNN_SDPA_DEPRIORITIZED=1``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

_LENGTHS = 5
_DEPRIORITIZED = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
_ONE_PART = "ZEROKIT_CHOSEN_ALONE"


def _call(length: int) -> tuple[float, float]:
    """Milliseconds forward and backward."""
    query = torch.randn(4, 12, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    output = scaled_dot_product_attention(query, query, query, is_causal=True)
    torch.cuda.synchronize()
    forward = time.perf_counter() - began
    gradient = torch.ones_like(output)
    torch.cuda.synchronize()
    began = time.perf_counter()
    output.backward(gradient)
    torch.cuda.synchronize()
    return 1e3 * forward, 1e3 * (time.perf_counter() - began)


def _series(first_length: int) -> dict[str, list[float]]:
    _call(first_length - 101)  # what the library loads once
    found: dict[str, list[float]] = {}
    pairs = [(_call(first_length + 2 * at), _call(first_length + 2 * at)) for at in range(_LENGTHS)]
    for index, name in enumerate(("forward", "backward")):
        found[name] = [round(statistics.median(pair[turn][index] for pair in pairs), 2) for turn in (0, 1)]
    return found


def main() -> None:
    """One line."""
    found: dict[str, object] = {"chosen": _series(801)}
    if not os.environ.get(_ONE_PART):
        for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
            with sdpa_kernel(getattr(SDPBackend, name)):
                found[name.lower()] = _series(1201 + 200 * len(found))
        alone = subprocess.run(
            [sys.executable, "-m", "benchmarks.measure.attention_plans"], capture_output=True, text=True,
            check=True, env={**os.environ, _DEPRIORITIZED: "1", _ONE_PART: "1"},
        )  # fmt: skip
        found["deprioritized"] = json.loads(alone.stdout)["chosen"]
    found |= {
        "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
