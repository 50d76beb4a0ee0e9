"""What one phase reached, and which rank it was: the values that a probe keeps."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from zerokit.launcher.rank.cuda_memory import CudaMemory, Peaks
from zerokit.launcher.rank_file import SCHEMA, Record

_RECENT_STEPS = 64


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """What one phase reached so far."""

    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    peak_host_rss_bytes: int = 0
    seconds: float = 0.0
    count: int = 0
    recent_allocated_bytes: int = 0  # the peaks since they were last taken
    recent_host_rss_bytes: int = 0

    def add(self, peaks: Peaks) -> None:
        """Raise the allocator's peaks."""
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, peaks.allocated_bytes)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, peaks.reserved_bytes)
        self.recent_allocated_bytes = max(self.recent_allocated_bytes, peaks.allocated_bytes)

    def add_host(self, rss_bytes: int) -> None:
        """Raise the peak of resident memory."""
        self.peak_host_rss_bytes = max(self.peak_host_rss_bytes, rss_bytes)
        self.recent_host_rss_bytes = max(self.recent_host_rss_bytes, rss_bytes)

    def take_recent(self) -> tuple[int, int]:
        """Peak allocated and resident bytes since the last call."""
        recent = self.recent_allocated_bytes, self.recent_host_rss_bytes
        self.recent_allocated_bytes = self.recent_host_rss_bytes = 0
        return recent

    def account(self, on_gpu: bool) -> Record:
        """Account as the rank file has it; without a GPU its figures are None."""
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes if on_gpu else None,
            "peak_reserved_bytes": self.peak_reserved_bytes if on_gpu else None,
            "peak_host_rss_bytes": self.peak_host_rss_bytes,
            "seconds": round(self.seconds, 3),
            "count": self.count,
        }


class StepTimes:
    """Seconds from one optimizer step to the next, of the last ones, and the most micro-batches of a step."""

    def __init__(self) -> None:
        self._micro_steps = self._most_micro_steps = 0
        self._last_end: float | None = None
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)

    def done(self, micro_steps: int) -> None:
        """A step was applied now, after so many micro-batches in all."""
        self._most_micro_steps = max(self._most_micro_steps, micro_steps - self._micro_steps)
        self._micro_steps = micro_steps
        now = time.monotonic()
        if self._last_end is not None:
            self._seconds.append(now - self._last_end)
        self._last_end = now

    def account(self) -> Record:
        """For a tick; seconds from the second step on."""
        most = {"most_micro_steps": self._most_micro_steps}
        if not self._seconds:
            return most
        return {
            **most,
            "step_seconds": round(self._seconds[-1], 6),
            "median_step_seconds": round(statistics.median(self._seconds), 6),
        }


@dataclass(slots=True, kw_only=True)
class Identity:
    """Which rank this process is."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    device: str
    script: str
    pid: int = field(default_factory=os.getpid)

    def start_record(self) -> Record:
        """The first line of the rank's file."""
        return {
            "type": "start", "schema": SCHEMA, "rank": self.rank, "local_rank": self.local_rank,
            "world_size": self.world_size, "host": self.host, "pid": self.pid, "device": self.device,
            "script": self.script, "python": sys.version.split()[0], "time": time.time(),
        }  # fmt: skip


def gpu_account(
    cuda: CudaMemory | None, peak: PhaseRecord, used_bytes: int, *, device: str, status: str | None
) -> Record:
    """What is in use on the GPU that holds most, and the run's peaks; ``gpu_status`` where nothing was
    allocated. ``used_bytes``: the most that all processes had of the device (0: not read); ``status``: why
    nothing is measured, where the hook on torch knows."""
    if cuda is None or not cuda.devices:
        why = None if device == "cpu" else "nothing_allocated"  # the words: zerokit.report.measured
        if why is not None and cuda is None:
            why = (status or "hook_failed") if "torch" in sys.modules else "no_torch"
        elif why is not None and cuda is not None and not cuda.ready():
            why = "not_used"
        return {"allocated_bytes": None, "reserved_bytes": None, "peak_allocated_bytes": None,
                "peak_reserved_bytes": None, "gpu_status": why}  # fmt: skip
    number, state = max(cuda.devices.items(), key=lambda item: item[1].reserved_bytes)
    return {
        "cuda_device": number,
        "allocated_bytes": state.allocated_bytes, "reserved_bytes": state.reserved_bytes,
        "device_used_bytes": state.device_used_bytes, "device_total_bytes": state.device_total_bytes,
        "device_name": state.device_name,
        "peak_allocated_bytes": peak.peak_allocated_bytes,
        "peak_reserved_bytes": peak.peak_reserved_bytes,
        "peak_device_used_bytes": used_bytes or None,
        "alloc_retries": sum(memory.retries for memory in cuda.devices.values()),
        "ooms": sum(memory.ooms for memory in cuda.devices.values()),
    }  # fmt: skip
