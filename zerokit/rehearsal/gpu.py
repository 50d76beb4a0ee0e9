"""The GPU that is not there, as a script may ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.domain.hardware import Gpu
from zerokit.domain.partial_sums import Processors
from zerokit.errors import InputError
from zerokit.memory.card import DEFAULT_CONTEXT_BYTES, NCCL_BYTES

_H200_MEMORY_CLOCK_MHZ = 3201
"""Stands for what the catalogue does not say: what cuDNN answers depends on it for Hopper only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """What ``torch.cuda`` says of the device.

    Attributes:
        title: the name that ``torch.cuda.get_device_name`` gives.
        total_memory_bytes: ``get_device_properties(0).total_memory``.
        threads_per_multiprocessor: resident at most.
        count: GPUs that this rank sees.
        memory_clock_mhz: of a Hopper GPU; an H200's stands for others.
    """

    title: str
    capability: tuple[int, int]
    total_memory_bytes: int
    multiprocessors: int
    threads_per_multiprocessor: int
    count: int
    memory_clock_mhz: int = _H200_MEMORY_CLOCK_MHZ
    l2_cache_bytes: int = 50 << 20
    context_bytes: int = DEFAULT_CONTEXT_BYTES

    @property
    def processors(self) -> Processors:
        """What the memory of reductions depends on."""
        return Processors(count=self.multiprocessors, threads=self.threads_per_multiprocessor)

    def room_in_init(self, world_size: int) -> int:
        """Free for tensors before kernels and libraries of the first step are loaded. Bytes."""
        return self.total_memory_bytes - self.context_bytes - (NCCL_BYTES if world_size > 1 else 0)

    @classmethod
    def of(cls, gpu: Gpu, count: int) -> FakeGpu:
        """Of a GPU in the catalogue.

        Raises:
            InputError: a GPU of whose chip the catalogue says nothing, as of all of AMD's.
        """
        chip = gpu.chip
        if chip is None:
            from zerokit.catalog import gpus

            rehearsed = ", ".join(entry.name for entry in gpus.catalog() if entry.chip)
            raise InputError(
                f"{gpu.name} cannot be rehearsed: the catalogue does not describe its chip; ⟨gpu⟩ takes one "
                f"of {rehearsed}"
            )
        return cls(
            title=gpu.title,
            capability=chip.compute_capability,
            total_memory_bytes=gpu.vram_bytes,
            multiprocessors=chip.processors.count,
            threads_per_multiprocessor=chip.processors.threads,
            count=count,
            memory_clock_mhz=chip.memory_clock_mhz or _H200_MEMORY_CLOCK_MHZ,
            l2_cache_bytes=chip.l2_cache_bytes,
            context_bytes=gpu.context_bytes or DEFAULT_CONTEXT_BYTES,
        )
