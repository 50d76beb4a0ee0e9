"""The GPU that is not there, as a script may ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.domain.compute_capability import CAPABILITIES, capability_of, processors_of, threads_of
from zerokit.domain.hardware import Gpu
from zerokit.domain.partial_sums import Processors
from zerokit.errors import InputError

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
    def processors(self) -> Processors:
        """What the memory of reductions depends on."""
        return Processors(count=self.multiprocessors, threads=self.threads_per_multiprocessor)

    @property
    def threads_per_multiprocessor(self) -> int:
        """Resident at most."""
        return threads_of(self.capability)

    @classmethod
    def of(cls, gpu: Gpu, count: int) -> FakeGpu:
        """Of a GPU in the catalogue.

        Raises:
            InputError: a GPU whose compute capability is not in the table; none of AMD's is.
        """
        capability, processors = capability_of(gpu.name), processors_of(gpu.name)
        if capability is None or processors is None:
            catalogue_names = ", ".join(sorted(name for names in CAPABILITIES.values() for name in names))
            raise InputError(
                f"--gpu {gpu.name}: rehearsals support NVIDIA GPUs only, of these {catalogue_names}"
            )
        return cls(
            title=gpu.title,
            capability=capability,
            total_memory_bytes=gpu.vram_bytes,
            multiprocessors=processors.count,
            count=count,
            memory_clock_mhz=_MEMORY_CLOCKS_MHZ.get(gpu.name, _H200_MEMORY_CLOCK_MHZ),
            l2_cache_bytes=int(_OTHER_L2_MIB.get(gpu.name, _L2_MIB[capability]) * (1 << 20)),
        )
