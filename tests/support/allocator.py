"""A stand-in for PyTorch's caching allocator, where tests run without a GPU."""

from __future__ import annotations


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
