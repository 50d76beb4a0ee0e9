"""Peaks of PyTorch's CUDA allocator by phase, without disturbing what the script reads.

The allocator keeps one peak since its last reset. To get a peak for each phase it has to be reset at
phase boundaries, while the script, DeepSpeed's ``see_memory_usage`` and the Trainer's memory tracker
reset and read it too. So every reset, whoever asks for it, first harvests the peak; and whoever reads
the statistics gets the peak since *their* last reset, as if we were not there. All of PyTorch's
functions for either end in ``torch._C._cuda_resetPeakMemoryStats`` and ``torch._C._cuda_memoryStats``
(torch/cuda/memory.py), and those two are wrapped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Stats = dict[str, Any]

_READ = "_cuda_memoryStats"
_RESET = "_cuda_resetPeakMemoryStats"
_RESET_TOTALS = "_cuda_resetAccumulatedMemoryStats"
_HAS_CONTEXT = "_cuda_hasPrimaryContext"


@dataclass(slots=True, kw_only=True)
class Peaks:
    """What a stretch of time reached on one device, in bytes."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class DeviceState:
    """One device, as its statistics stood when last read."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    allocations: int = 0
    """Allocations since the process began; grows while the rank works."""
    retries: int = 0
    """Times the allocator had to give cached memory back and try again."""
    ooms: int = 0
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None
    device_name: str | None = None


class CudaMemory:
    """Reads and harvests the allocator's statistics. All methods are safe from any thread."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._c = torch._C
        self._read: Callable[[int], Stats] = getattr(self._c, _READ)
        self._reset: Callable[[int], None] = getattr(self._c, _RESET)
        self._reset_totals: Callable[[int], None] | None = getattr(self._c, _RESET_TOTALS, None)
        # Reading a device's statistics takes some 0.1 ms, and there may be eight that are a peer's.
        self._has_context: Callable[[int], bool] = getattr(self._c, _HAS_CONTEXT, lambda device: True)
        self._lock = threading.RLock()
        self._cached_peak_keys: list[tuple[str, str]] = []  # where the statistics hold peaks: name, pool
        self._since_reset: dict[int, list[int]] = {}  # device -> those since the script's own last reset
        self._base: dict[int, tuple[int, int]] = {}  # device -> retries, ooms before totals were reset
        self.devices: dict[int, DeviceState] = {}
        self.on_foreign_reset: Callable[[int, Peaks], None] = lambda device, peaks: None
        """Called with what a reset that is not ours would have thrown away."""

    def install(self) -> None:
        """Wrap the statistics functions of ``torch._C``."""
        setattr(self._c, _READ, self._read_for_script)
        setattr(self._c, _RESET, self._reset_for_script)
        if self._reset_totals is not None:
            setattr(self._c, _RESET_TOTALS, self._reset_totals_for_script)

    def installed_in(self, torch: Any) -> bool:
        """Whether it is this object that wraps the statistics functions of that ``torch``."""
        return bool(getattr(torch._C, _READ, None) == self._read_for_script)

    def uninstall(self) -> None:
        """Put PyTorch's own functions back."""
        setattr(self._c, _READ, self._read)
        setattr(self._c, _RESET, self._reset)
        if self._reset_totals is not None:
            setattr(self._c, _RESET_TOTALS, self._reset_totals)

    def ready(self) -> bool:
        """Whether the script initialised CUDA. Before that nothing may touch a device."""
        return bool(self._torch.cuda.is_initialized())

    def harvest(self) -> dict[int, Peaks]:
        """Peaks since the last harvest of every device in use, which begin anew with this call."""
        if not self.ready():
            return {}
        with self._lock:
            return {device: self._read_peaks(device) for device in self._in_use()}

    def peek(self) -> dict[int, Peaks]:
        """Peaks since the last harvest, left as they are."""
        if not self.ready():
            return {}
        with self._lock:
            return {device: self._note(device, self._read(device)) for device in self._in_use()}

    def measure_devices(self) -> None:
        """Read name, used and total memory of each device in use (driver calls: not for every phase)."""
        for device in list(self.devices):
            with contextlib.suppress(RuntimeError):
                free, total = self._torch.cuda.cudart().cudaMemGetInfo(device)
                self.devices[device].device_used_bytes = total - free
                self.devices[device].device_total_bytes = total
            if self.devices[device].device_name is None:
                with contextlib.suppress(AssertionError, AttributeError, RuntimeError):
                    self.devices[device].device_name = self._torch.cuda.get_device_name(device)

    def _in_use(self) -> list[int]:
        """Devices on which this process allocated. Reading statistics makes no CUDA context."""
        if not self.devices:
            self._look()
        return list(self.devices)

    def look_for_devices(self) -> None:
        """Look again at every visible device: a rank may begin to use a second one."""
        if self.ready():
            with self._lock:
                self._look()

    def _look(self) -> None:
        for device in range(self._torch.cuda.device_count()):
            if device in self.devices or not self._has_context(device):
                continue
            if _bytes(self._read(device), "reserved_bytes", "peak"):
                self.devices[device] = DeviceState()

    def _read_peaks(self, device: int) -> Peaks:
        stats = self._read(device)
        peaks = self._note(device, stats)
        pool_peaks = [stats[name][pool]["peak"] for name, pool in self._peak_keys(stats)]
        before = self._since_reset.get(device)
        self._since_reset[device] = list(map(max, pool_peaks, before)) if before is not None else pool_peaks
        self._reset(device)
        return peaks

    def _peak_keys(self, stats: Stats) -> list[tuple[str, str]]:
        """Looked up once: this runs at every phase boundary."""
        if not self._cached_peak_keys:
            self._cached_peak_keys = [
                (name, pool)
                for name, pools in stats.items()
                if isinstance(pools, dict)
                for pool, values in pools.items()
                if isinstance(values, dict) and isinstance(values.get("peak"), int)
            ]
        return self._cached_peak_keys

    def _note(self, device: int, stats: Stats) -> Peaks:
        state = self.devices[device]
        base_retries, base_ooms = self._base.get(device, (0, 0))
        state.allocated_bytes = _bytes(stats, "allocated_bytes", "current")
        state.reserved_bytes = _bytes(stats, "reserved_bytes", "current")
        state.allocations = _bytes(stats, "allocation", "allocated")
        state.retries = base_retries + stats.get("num_alloc_retries", 0)
        state.ooms = base_ooms + stats.get("num_ooms", 0)
        return Peaks(
            allocated_bytes=_bytes(stats, "allocated_bytes", "peak"),
            reserved_bytes=_bytes(stats, "reserved_bytes", "peak"),
        )

    def _read_for_script(self, device: int) -> Stats:
        with self._lock:
            stats = self._read(device)
            for (name, pool), peak in zip(
                self._cached_peak_keys, self._since_reset.get(device, ()), strict=False
            ):
                values = stats[name][pool]
                values["peak"] = max(values["peak"], peak)
            return stats

    def _reset_for_script(self, device: int) -> None:
        with self._lock:
            if device not in self.devices:
                self.devices[device] = DeviceState()
            peaks = self._note(device, self._read(device))
            self._since_reset.pop(device, None)
            self._reset(device)
        self.on_foreign_reset(device, peaks)

    def _reset_totals_for_script(self, device: int) -> None:
        assert self._reset_totals is not None
        with self._lock:
            stats = self._read(device)
            retries, ooms = self._base.get(device, (0, 0))
            self._base[device] = (
                retries + stats.get("num_alloc_retries", 0),
                ooms + stats.get("num_ooms", 0),
            )
            self._reset_totals(device)


def _bytes(stats: Stats, name: str, field: str) -> int:
    value = stats.get(name, {}).get("all", {}).get(field, 0)
    return value if isinstance(value, int) else 0
