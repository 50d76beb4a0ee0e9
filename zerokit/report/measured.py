"""What a rank measured: of which memory its figures are, and why a figure is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zerokit.domain.phases import BEFORE_TRAINING

Rank = Mapping[str, Any]

_NEARLY = 0.99  # of the host's memory: what tensors free stays resident, so that later phases look as full
_UNEXPLAINED = ("other",)
_LATER = {"init": ("forward", "backward", "step"), "forward": ("backward", "step"), "backward": ("step",)}
_WHY = {
    "no_torch": (
        "this process never imported torch",
        "if the script starts the training in other processes, launch what they run",
    ),
    "no_cuda_build": (
        "the torch that it imported is a build without CUDA",
        "install a CUDA build of torch, or run on CPU ranks with --device cpu",
    ),
    "hook_failed": (
        "the hook on torch could not be put; its own message is in the rank's log",
        "report it with the version of torch",
    ),
    "not_used": (
        "this process never used a GPU",
        "look for an option of the script that keeps it on the CPU, or launch what its worker processes run",
    ),
    "nothing_allocated": (
        "nothing was allocated through PyTorch's CUDA allocator",
        "a pluggable allocator, or PYTORCH_NO_CUDA_MEMORY_CACHING, keeps no statistics: run without it",
    ),
}
_UNKNOWN = (
    "its file holds no figures of the CUDA allocator, and no reason",
    "run it again with this version of zerokit",
)
_BEFORE_USE = ("no_torch", "not_used", "nothing_allocated")


def had_engine(rank: Rank) -> bool:
    """Whether a DeepSpeed engine came up in it, or began to."""
    if rank.get("engine") or rank.get("steps_counted_by") == "optimizer":
        return bool(rank.get("engine"))
    return bool(rank.get("steps") or "init" in (rank.get("phase_details") or {}))


def on_gpu(device: str | None, peak_allocated_bytes: int | None) -> bool:
    """Whether it is GPU memory that a rank's figures are to be of."""
    return device == "cuda" or peak_allocated_bytes is not None


def why_not_measured(device: str | None, rank: Rank, state: str) -> tuple[str, str | None] | None:
    """Why a rank on a GPU has no figures of it, and what to do (None: nothing); None where it has them.

    Args:
        rank: its last tick or end.
        state: how it ended.
    """
    if device != "cuda" or rank.get("peak_allocated_bytes") is not None:
        return None
    status = rank.get("gpu_status")
    if state not in ("finished", "stopped") and (status in _BEFORE_USE or not rank):
        return "it ended before it used the GPU", None
    return _WHY.get(str(status), _UNKNOWN)


def unmeasured_problems(ranks: Iterable[Rank]) -> list[str]:
    """One sentence for each reason, with the ranks that it holds for."""
    by_text: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.get("not_measured") and rank.get("not_measured_fix"):
            text = f"GPU memory not measured: {rank['not_measured']}; {rank['not_measured_fix']}"
            by_text.setdefault(text, []).append(rank["rank"])
    return [f"{_names(numbers)}: {text}" for text, numbers in by_text.items()]


def _names(numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    return f"rank {listed}" if len(numbers) == 1 else f"ranks {listed}"


def peak_phase(phases: Mapping[str, int], *, gpu: bool) -> str | None:
    """The phase of the peak: of GPU memory the one that reached it, of host memory the first that did.

    One that explains something goes before one that does not.
    """
    if not phases:
        return None
    most = max(phases.values())
    candidates = [name for name, value in phases.items() if value >= (most if gpu else _NEARLY * most)]
    return next((name for name in candidates if name not in _UNEXPLAINED), candidates[0])


def reached_end_of(rank: Rank, phase: str) -> bool:
    """Whether a rank got through a phase at least once, so that its peak there is one."""
    if rank["state"] in ("finished", "stopped") or rank["steps"]:
        return True
    details = rank.get("phase_details") or {}
    return any((details.get(later) or {}).get("count") for later in _LATER.get(phase, ()))


def init_bytes(phases: Mapping[str, int]) -> int | None:
    """What is to be compared with ``init`` of a prediction: it means all until the first engine stands."""
    return max((phases[name] for name in BEFORE_TRAINING if name in phases), default=None)
