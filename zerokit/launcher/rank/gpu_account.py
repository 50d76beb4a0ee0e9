"""What a tick says of the rank's GPU, or why it has no figures of one."""

from __future__ import annotations

import sys

from zerokit.launcher.rank.cuda_memory import CudaMemory
from zerokit.launcher.rank.phase_record import PhaseRecord
from zerokit.launcher.rank_file import Record


def gpu_account(
    cuda: CudaMemory | None, peak: PhaseRecord, used_bytes: int, *, device: str, status: str | None
) -> Record:
    """What is in use on the GPU that holds most, and the run's peaks; ``gpu_status`` where nothing was
    allocated.

    Args:
        used_bytes: the most that all processes had of the device; 0 where it was not read.
        device: the rank's, ``cuda`` or ``cpu``.
        status: why nothing is measured, where the hook on torch knows.
    """
    if cuda is None or not cuda.devices:
        return {"allocated_bytes": None, "reserved_bytes": None, "peak_allocated_bytes": None,
                "peak_reserved_bytes": None, "gpu_status": _why_no_gpu(cuda, device, status)}  # fmt: skip
    number, state = max(cuda.devices.items(), key=lambda item: item[1].reserved_bytes)
    return {
        "cuda_device": number,
        "allocated_bytes": state.allocated_bytes, "reserved_bytes": state.reserved_bytes,
        "device_used_bytes": state.device_used_bytes, "device_total_bytes": state.device_total_bytes,
        "peak_allocated_bytes": peak.peak_allocated_bytes,
        "peak_reserved_bytes": peak.peak_reserved_bytes,
        "peak_device_used_bytes": used_bytes or None,
        "alloc_retries": sum(memory.retries for memory in cuda.devices.values()),
        "ooms": sum(memory.ooms for memory in cuda.devices.values()),
    }  # fmt: skip


def _why_no_gpu(cuda: CudaMemory | None, device: str, status: str | None) -> str | None:
    """Why there are no figures of a GPU; None on CPU ranks. The words: :mod:`zerokit.report.measured`."""
    if device == "cpu":
        return None
    if cuda is None:
        return (status or "hook_failed") if "torch" in sys.modules else "no_torch"
    return "nothing_allocated" if cuda.ready() else "not_used"
