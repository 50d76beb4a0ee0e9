"""Compute capability and multiprocessors of the catalogue's NVIDIA GPUs."""

from __future__ import annotations

from zerokit.domain.partial_sums import Processors

CAPABILITIES: dict[tuple[int, int], tuple[str, ...]] = {
    (7, 0): ("v100-16gb", "v100-32gb"),
    (7, 5): ("t4",),
    (8, 0): ("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a30", "a800-80gb"),
    (8, 6): ("a10", "a10g", "a40", "a6000", "rtx-3090"),
    (8, 9): ("l4", "l40", "l40s", "rtx-4090", "rtx-6000-ada"),
    (9, 0): ("h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm-80gb", "h20-96gb", "h200", "h800-sxm-80gb"),
    (10, 0): ("b200", "gb200"),
    (12, 0): ("rtx-5090", "rtx-pro-6000", "rtx-pro-6000-server"),
}
"""Compute capability by catalogue name (NVIDIA, "CUDA GPU Compute Capability")."""

_MULTIPROCESSORS = {
    "v100-16gb": 80,
    "v100-32gb": 80,
    "t4": 40,
    "a30": 56,
    "a10": 72,
    "a10g": 80,
    "a40": 84,
    "a6000": 84,
    "rtx-3090": 82,
    "l4": 58,
    "l40": 142,
    "l40s": 142,
    "rtx-4090": 128,
    "rtx-6000-ada": 142,
    "h100-pcie-80gb": 114,
    "h20-96gb": 78,
    "b200": 148,
    "gb200": 152,
    "rtx-5090": 170,
    "rtx-pro-6000": 188,
    "rtx-pro-6000-server": 188,
    "a100-40gb": 108,
    "a100-80gb": 108,
    "a100-pcie-40gb": 108,
    "a100-pcie-80gb": 108,
    "a800-80gb": 108,
}
"""Streaming multiprocessors (NVIDIA's data sheets); H100 SXM, H100 NVL, H200 and H800 SXM have 132."""
_USUAL_MULTIPROCESSORS = 132


def capability_of(name: str) -> tuple[int, int] | None:
    """Of a GPU in the catalogue; None: not in the table, as all of AMD's."""
    return next((capability for capability, names in CAPABILITIES.items() if name in names), None)


def threads_of(capability: tuple[int, int]) -> int:
    """Resident on a multiprocessor at most (CUDA C++ Programming Guide, technical specifications)."""
    if capability == (7, 5):
        return 1024
    return 1536 if capability in ((8, 6), (8, 9), (12, 0)) else 2048


def processors_of(name: str) -> Processors | None:
    """Of a GPU in the catalogue; None: not in the table."""
    capability = capability_of(name)
    if capability is None:
        return None
    count = _MULTIPROCESSORS.get(name, _USUAL_MULTIPROCESSORS)
    return Processors(count=count, threads=threads_of(capability))
