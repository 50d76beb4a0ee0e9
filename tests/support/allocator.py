"""A stand-in for PyTorch's caching allocator, where tests run without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.launcher.rank.cuda_memory import CudaMemory
from zerokit.launcher.rank.phase_record import Identity
from zerokit.launcher.rank.probe import Probe

MIB = 1 << 20


class Allocator:
    """Two devices' worth of the caching allocator's statistics."""

    def __init__(self) -> None:
        self.now = [0, 0]
        self.peak = [0, 0]
        self.held = [0, 0]
        self.held_peak = [0, 0]
        self.allocations = [0, 0]
        self.retries = [0, 0]
        self.segments: list[dict[str, object]] = []

    def allocate(self, size: int, device: int = 0) -> None:
        self.allocations[device] += 1
        self.now[device] += size
        self.peak[device] = max(self.peak[device], self.now[device])
        self.held[device] = max(self.held[device], self.now[device])
        self.held_peak[device] = max(self.held_peak[device], self.held[device])

    def free(self, size: int, device: int = 0) -> None:
        self.now[device] -= size

    def spike(self, size: int, device: int = 0) -> None:
        self.allocate(size, device)
        self.free(size, device)

    def stats(self, device: int) -> dict[str, object]:
        return {
            "allocation": {"all": {"current": 0, "peak": 0, "allocated": self.allocations[device]}},
            "allocated_bytes": {"all": {"current": self.now[device], "peak": self.peak[device]},
                                "large_pool": {"current": self.now[device], "peak": self.peak[device]}},
            "reserved_bytes": {"all": {"current": self.held[device], "peak": self.held_peak[device]}},
            "reserved_bytes_by_private_pools": {(0, 1): {"all": {"current": 1, "peak": 2}}},
            "num_alloc_retries": self.retries[device], "num_ooms": 0, "max_split_size": -1,
        }  # fmt: skip

    def reset(self, device: int) -> None:
        self.peak[device], self.held_peak[device] = self.now[device], self.held[device]

    def reset_totals(self, device: int) -> None:
        self.retries[device] = 0


def installed(monkeypatch: pytest.MonkeyPatch, torch: Any) -> Allocator:
    """The stand-in below torch.cuda: everything above it is PyTorch's own code."""
    double = Allocator()
    for name, function in {
        "_cuda_memoryStats": double.stats,
        "_cuda_resetPeakMemoryStats": double.reset,
        "_cuda_resetAccumulatedMemoryStats": double.reset_totals,
    }.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cudart = SimpleNamespace(cudaMemGetInfo=lambda device: (100 * MIB - double.held[device], 100 * MIB))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU number {device}")
    return double


@contextmanager
def probe_on(torch: Any, folder: Path) -> Iterator[Probe]:
    """The probe of a rank that has this GPU."""
    identity = Identity(rank=0, local_rank=0, world_size=1, host="here", device="cuda", script="t.py")
    probe = Probe(identity, folder)
    probe.cuda = CudaMemory(torch)
    probe.cuda.on_foreign_reset = probe.foreign_reset
    probe.cuda.install()
    try:
        yield probe
    finally:
        probe.cuda.uninstall()


def train_step(probe: Probe, allocator: Allocator, forward: int, backward: int, step: int) -> None:
    """An optimizer step whose phases allocate so many MiB each."""
    for name, size in (("forward", forward), ("backward", backward), ("step", step)):
        probe.enter(name)
        allocator.spike(size * MIB)
    probe.step_done()
    probe.enter("other")
