"""What a rank notes of its memory. Everything is ``None`` on CPU ranks, which have no allocator to ask."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def on_gpu() -> bool:
    """Whether this rank trains on a GPU."""
    return torch.cuda.is_available()


def device_used_bytes(shared: bool) -> int | None:
    """What this process holds on its GPU: allocator, context, NCCL. ``None``: cannot be told. Alone on the
    GPU it is total less free; beside others what NVML says of this process."""
    if not on_gpu():
        return None
    free, total = torch.cuda.mem_get_info()
    if not shared:
        return int(total - free)
    try:
        import pynvml  # type: ignore[import-not-found]

        pynvml.nvmlInit()
        index = torch.cuda.current_device()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        physical = int(visible.split(",")[index]) if visible else index
        handle = pynvml.nvmlDeviceGetHandleByIndex(physical)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory)
    except Exception as error:
        print(f"nvml: {error}", file=sys.stderr)
    return None


def retries() -> int | None:
    """How often the allocator gave cached memory back to go on."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if on_gpu() else None


def reserved() -> int | None:
    """What the allocator holds now. Bytes."""
    return int(torch.cuda.memory_reserved()) if on_gpu() else None


def cap(limit_bytes: int) -> None:
    """Hold the caching allocator of this process to so many bytes; nothing on CPU ranks."""
    if on_gpu():
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))


class Meter:
    """Allocated bytes at the end of each phase and the peak in it; the peaks over all of them."""

    def __init__(self) -> None:
        self.peak_allocated: int | None = 0 if on_gpu() else None
        self.peak_reserved: int | None = 0 if on_gpu() else None

    def phase(self) -> dict[str, int]:
        """What the phase that ends here showed (empty on CPU ranks); the next begins."""
        if self.peak_allocated is None or self.peak_reserved is None:
            return {}
        found = {"alloc": torch.cuda.memory_allocated(), "max_alloc": torch.cuda.max_memory_allocated()}
        self.peak_allocated = max(self.peak_allocated, found["max_alloc"])
        self.peak_reserved = max(self.peak_reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        return found


class Note:
    """What a rank found out, on disk after every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {"ok": False, "oom": False}

    def add(self, **values: Any) -> None:
        """Keep more."""
        self.values |= values
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(self.values), encoding="utf-8")
        temporary.replace(self.path)


def versions() -> dict[str, str]:
    """What the rank runs with."""
    import deepspeed
    import transformers

    return {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "transformers": transformers.__version__,
        "deepspeed": deepspeed.__version__,
        "gpu": torch.cuda.get_device_name() if on_gpu() else "none",
    }


def enter(case: Mapping[str, Any], note: Note) -> None:
    """The rank takes its place on its GPU, with the allocator held to the case's ``limit_bytes``."""
    if on_gpu():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.zeros(1, device="cuda")
        torch.cuda.empty_cache()
    note.add(device_used_before_model_bytes=device_used_bytes(bool(case["shared"])), versions=versions())
    if case["limit_bytes"]:
        cap(case["limit_bytes"])


def leave(case: Mapping[str, Any], note: Note) -> None:
    """All went well: what the rank holds at its end."""
    note.add(
        ok=True,
        device_used_bytes=device_used_bytes(bool(case["shared"])),
        reserved_at_end_bytes=reserved(),
        alloc_retries=retries(),
        host_max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
