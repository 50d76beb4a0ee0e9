"""What the parent tells the rehearsed process: the order, and the GPU that is not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerokit.domain.hardware import Gpu, Processors
from zerokit.domain.settings import SETTINGS
from zerokit.errors import InputError
from zerokit.memory.card import DEFAULT_CONTEXT_BYTES, NCCL_BYTES

ENGINE = "engine.json"
"""What a rehearsal of a few layers writes beside its course: the configuration that DeepSpeed runs with."""

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
        """Build it from a GPU in the catalogue. Raises InputError: a GPU of whose chip the catalogue says
        nothing, as of all of AMD's."""
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


LENGTH_ARGUMENTS = SETTINGS["seq_len"].in_scripts
"""What a Trainer's arguments may call the length at which it cuts a sequence."""
PHASE, STEP = "phase: ", "optimizer step "
"""What a line about the progress begins with that says where the script is, or which step it has done."""

READ_FILE, READ_FOLDER, READ_MODULES = "f", "d", "m"
"""What begins a record of what was read: of a path that was opened or asked for; of a folder that was listed;
of one that was searched for modules."""


def reads_log(folder: str | Path, rank: int) -> Path:
    """Where the reads of a rank are written down, each with a NUL at its end, in the folder of one run's
    ranks."""
    return Path(folder, f"reads-{rank}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One rank to rehearse. Like :class:`Script` it goes as JSON (``asdict``, ``zerokit.values.restored``).

    Attributes:
        target: a script's path, or a module's name.
        output_path: the file that the script prints into.
        folder: temporary; what the process writes there remains until the parent has read it.
        unconfined: without namespaces it runs all the same, and only what Python writes is refused.
        writable: another folder whose changes remain; None: there is none.
        most_steps: optimizer steps after which the data ends.
        fewest_steps: so many are rehearsed, alike or not, where the script has them.
        progress_fd: where lines about the progress go, in the process that runs the script.
        host_factor: the host's seconds over the reference host's; None: not known.
        operators_path: where the operators of one step go; None: they are not recorded.
        messages_folder: what ranks send each other, of those rehearsed before and of this one.
        unknown_senders: ranks that wait for this one's messages: theirs to it are not known.
        layers: so many of a decoder's are built; None: all. reserves: whether what the allocator reserves is
            asked for, with blocks that come back late.
        course_path: where the course of such a rehearsal is written; ``fewer_layers``: in the file that is
            there, which with this one's tells that of all layers; None: it is the first.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    gpu: FakeGpu
    rank: int
    world_size: int
    most_steps: int
    folder: str
    output_path: str
    writable: str | None
    result_path: str
    gpu_name: str
    environment: dict[str, str]
    cwd: str
    progress_fd: int = -1
    unconfined: bool = False
    fewest_steps: int = 0
    host_factor: float | None = None
    operators_path: str | None = None
    messages_folder: str | None = None
    unknown_senders: tuple[int, ...] = ()
    layers: int | None = None
    reserves: bool = True
    course_path: str | None = None
    fewer_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What ranks to rehearse have in common, and what is put in place for all of them.

    Attributes:
        arguments: the user's, without those that a plan adds.
        imports: of installed libraries, in the script's order: ``module`` or ``module:name``.
        are_later: something may come before some of them; else the script begins with them.
        parent_pid: the process without which this one ends.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    gpu: FakeGpu
    imports: tuple[str, ...]
    are_later: bool
    folder: str
    parent_pid: int
