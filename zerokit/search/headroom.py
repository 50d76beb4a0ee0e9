"""What a strategy leaves of each GPU, and whether that is more than its estimate may be off by."""

from __future__ import annotations

from zerokit.domain.hardware import Gpu
from zerokit.domain.strategy import Candidate, MemoryEstimate
from zerokit.units import GIB, format_gib


def headroom_bytes(memory: MemoryEstimate, gpu: Gpu) -> int:
    """What is left of each GPU; negative: so much is lacking."""
    return gpu.driver_vram_bytes - memory.min_vram_bytes


def is_sure(memory: MemoryEstimate, gpu: Gpu) -> bool:
    """Whether the headroom is at least what the estimate may be off by."""
    return headroom_bytes(memory, gpu) >= memory.unsure_bytes


def is_roomy(candidate: Candidate, gpu: Gpu) -> bool:
    """Whether a strategy surely fits and leaves a GiB."""
    return is_sure(candidate.memory, gpu) and headroom_bytes(candidate.memory, gpu) >= GIB


def headroom_words(memory: MemoryEstimate, gpu: Gpu) -> str:
    """``1.7 GiB headroom``; with how far the estimate may be off, where that is more:
    ``0.6 ± 4.6 GiB headroom``."""
    left = format_gib(headroom_bytes(memory, gpu), 1)
    if is_sure(memory, gpu):
        return f"{left} headroom"
    return f"{left.removesuffix(' GiB')} ± {format_gib(memory.unsure_bytes, 1)} headroom"


def remark(candidate: Candidate, gpu: Gpu) -> str:
    """Of a strategy that is named as one that fits: ``may fit: 0.6 ± 4.6 GiB headroom``, ``barely: 0.1 GiB
    headroom``; empty where it is roomy."""
    if is_roomy(candidate, gpu):
        return ""
    word = "barely" if is_sure(candidate.memory, gpu) else "may fit"
    return f"{word}: {headroom_words(candidate.memory, gpu)}"
