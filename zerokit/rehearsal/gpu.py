"""The GPU that is not there, as a script may ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.domain.hardware import Gpu
from zerokit.errors import InputError

_CAPABILITIES: dict[tuple[int, int], tuple[str, ...]] = {
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

_L2_MIB = {
    (7, 0): 6.0,
    (7, 5): 4.0,
    (8, 0): 40.0,
    (8, 6): 6.0,
    (8, 9): 96.0,
    (9, 0): 50.0,
    (10, 0): 126.5,
    (12, 0): 128.0,
}
_OTHER_L2_MIB = {"h200": 60.0, "h20-96gb": 60.0, "a30": 24.0, "l4": 48.0, "rtx-4090": 72.0, "rtx-5090": 96.0}
"""L2 cache (NVIDIA's architecture papers; ``torch.cuda.get_device_properties`` of H200 and B200)."""

_H200_MEMORY_CLOCK_MHZ = 3201
_MEMORY_CLOCKS_MHZ = {
    "h100-pcie-80gb": 1593,
    "h100-nvl-94gb": 2619,
    "h100-sxm-80gb": 2619,
    "h20-96gb": 2619,
    "h800-sxm-80gb": 2619,
}
"""The highest, as nvidia-smi prints it, for Hopper: what cuDNN answers for others does not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """What ``torch.cuda`` says of the device.

    Attributes:
        title: the name that ``torch.cuda.get_device_name`` gives.
        total_memory_bytes: ``get_device_properties(0).total_memory``.
        count: GPUs that this rank sees.
        memory_clock_mhz: of a Hopper GPU; an H200's stands for others.
    """

    title: str
    capability: tuple[int, int]
    total_memory_bytes: int
    multiprocessors: int
    count: int
    memory_clock_mhz: int = _H200_MEMORY_CLOCK_MHZ
    l2_cache_bytes: int = 50 << 20

    @property
    def threads_per_multiprocessor(self) -> int:
        """Resident at most (CUDA C++ Programming Guide, technical specifications by capability)."""
        if self.capability == (7, 5):
            return 1024
        return 1536 if self.capability in ((8, 6), (8, 9), (12, 0)) else 2048

    @classmethod
    def of(cls, gpu: Gpu, count: int) -> FakeGpu:
        """Of a GPU in the catalogue.

        Raises:
            InputError: a GPU whose compute capability is not in the table; none of AMD's is.
        """
        for capability, names in _CAPABILITIES.items():
            if gpu.name in names:
                return cls(
                    title=gpu.title,
                    capability=capability,
                    total_memory_bytes=gpu.vram_bytes,
                    multiprocessors=_MULTIPROCESSORS.get(gpu.name, 132),
                    count=count,
                    memory_clock_mhz=_MEMORY_CLOCKS_MHZ.get(gpu.name, _H200_MEMORY_CLOCK_MHZ),
                    l2_cache_bytes=int(_OTHER_L2_MIB.get(gpu.name, _L2_MIB[capability]) * (1 << 20)),
                )
        catalogue_names = ", ".join(sorted(name for names in _CAPABILITIES.values() for name in names))
        raise InputError(f"--gpu {gpu.name}: rehearsals support NVIDIA GPUs only, of these {catalogue_names}")
