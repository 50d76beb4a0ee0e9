"""GPUs, nodes and clusters: what a plan may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from zerokit.errors import InputError
from zerokit.values import frozen_dataclass, replace

# What CUDA's reductions take beside their result: partial sums of thread blocks that share an output.
#
# Follows ``aten/src/ATen/native/cuda/Reduce.cuh`` (PyTorch 2.11 to 2.13: ``setReduceConfig``,
# ``global_memory_size``, ``semaphore_size``). Large where columns are summed over many rows: the gradient
# of a bias or of a norm's weight over 8,192 tokens takes about 130 MiB.

_MOST_THREADS = 512  # ReduceConfig::MAX_NUM_THREADS, of all types but complex doubles
_WARP = 32
_FEWEST_VALUES, _MOST_VALUES = 16, 256  # per thread
_ACCUMULATOR = 4  # bytes of a sum of 16-bit or fp32 values
_BLOCK = 512  # PyTorch's allocator rounds up to it
INDEX_LIMIT = 2**31 - 1
"""Bytes, and elements, that a kernel's 32-bit offsets reach."""


@frozen_dataclass
class Processors:
    """Of a GPU: its multiprocessors, and the threads that are resident on each at most."""

    count: int
    threads: int


@frozen_dataclass
class Reduction:
    """How a kernel sees a reduction.

    Attributes:
        outputs: results; ``inputs``: values that each is made of.
        width: extent along which neighbouring values lie, in loads; ``height``: the other one's.
        vector: outputs that one load covers.
        along: whether neighbouring values belong to one output.
        accumulator: bytes of a partial result.
    """

    outputs: int
    inputs: int
    width: int
    height: int
    vector: int
    along: bool
    accumulator: int


def _power_below(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)


def partial_sums(reduction: Reduction, processors: Processors) -> tuple[int, ...]:
    """Bytes of the partial results and of the semaphores; empty where blocks share no output."""
    outputs, inputs, vector = reduction.outputs, reduction.inputs, reduction.vector
    most = _MOST_THREADS // vector
    wide, high = (
        _power_below(extent) if extent < most else most for extent in (reduction.width, reduction.height)
    )
    block_width = min(wide, _WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_input, step_output = (block_width, 1) if reduction.along else (1, block_width)
    if -(-inputs // step_input) < min(block_height * 16, _MOST_VALUES):
        return ()  # each warp has an output of its own: nothing is shared
    step_input *= block_height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = processors.count * (processors.threads // (block_width * block_height))
    if values < _MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-values // _FEWEST_VALUES)), -(-values // _MOST_VALUES))
    if blocks < 2:
        return ()
    shared = 1 if reduction.along else block_width * vector
    return reduction.accumulator * outputs * blocks * shared, 4 * grid


def partial_column_sums(columns: int, rows: int, element_bytes: int, processors: Processors) -> int:
    """Bytes that the sums of a dense matrix's columns take, as the allocator rounds them."""
    while max(rows * columns * element_bytes, rows * columns) > INDEX_LIMIT and rows > 1:
        rows -= rows // 2  # ``with_32bit_indexing``: one half after the other
    vector = 4
    while columns % vector:
        vector //= 2
    reduction = Reduction(
        outputs=columns, inputs=rows, width=columns // vector, height=rows, vector=vector, along=False,
        accumulator=_ACCUMULATOR,
    )  # fmt: skip
    return sum(-(-size // _BLOCK) * _BLOCK for size in partial_sums(reduction, processors))


CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) << 10
HOPPER_CUBLAS_WORKSPACE_BYTES = 32 << 20
"""What cuBLAS keeps for each thread that multiplies, before Hopper (``:4096:2:16:8``) and from it on, which
H200s showed (``parseChosenWorkspaceSize``, aten/src/ATen/cuda/CublasHandlePool.cpp)."""


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """What cuBLAS keeps on a GPU for each thread that multiplies."""
    return HOPPER_CUBLAS_WORKSPACE_BYTES if compute_capability[0] >= 9 else CUBLAS_WORKSPACE_BYTES


UNKNOWN_NETWORK_BYTES_PER_SECOND = 50e9
"""Per node, of GPUs whose usual network the catalogue does not have: one port of 400 Gb/s."""


@frozen_dataclass
class Chip:
    """What kernels and libraries choose by, as a script may ask for it.

    Attributes:
        compute_capability: major and minor.
        processors: its multiprocessors, and the threads that each holds at most.
        memory_clock_mhz: the highest, as nvidia-smi prints it; ``None``: not known.
    """

    compute_capability: tuple[int, int]
    processors: Processors
    l2_cache_bytes: int
    memory_clock_mhz: int | None = None


@frozen_dataclass
class Gpu:
    """One kind of GPU, as the catalogue describes it.

    Attributes:
        vram_bytes: what a process can use: ``torch.cuda.get_device_properties().total_memory``.
        driver_vram_bytes: what nvidia-smi (or rocm-smi) calls the total.
        peak_flops: dense matmul FLOP/s by precision (``bf16``, ``fp16``, ``fp32``), fp32
            accumulation; a precision that is missing is not supported in hardware.
        matmul_efficiency: best measured matmul rate over the datasheet's; ``None``: not measured.
        sustained_efficiency: the same of long runs, in which the clock falls to the power limit.
        link: ``nvlink``, ``pcie`` or ``xgmi``: what joins the GPUs of one node.
        link_bytes_per_second: per GPU and direction over that link.
        pcie_bytes_per_second: host link, per direction.
        network_bytes_per_second: per GPU and direction between this GPU's usual nodes; ``None``: not known.
        slowest_network_bytes_per_second: the same of the slowest of the common clouds' nodes.
        context_bytes: what the context of a process takes before its first tensor.
        host_bytes_per_gpu: of nodes that have this GPU, host memory over GPUs; 0: not known.
        chip: what kernels and libraries choose by; ``None``: not known, as of all of AMD's.
        sources: figure name -> where it comes from.
        stands_in: nobody named it: only its memory was given, and its speeds are assumed.
    """

    name: str
    title: str
    vram_bytes: int
    driver_vram_bytes: int
    peak_flops: Mapping[str, float]
    hbm_bytes_per_second: float
    link: str
    link_bytes_per_second: float
    pcie_bytes_per_second: float
    network_bytes_per_second: float | None = None
    slowest_network_bytes_per_second: float | None = None
    matmul_efficiency: float | None = None
    sustained_efficiency: float | None = None
    peer_to_peer: bool = True
    expandable_segments: bool = True
    context_bytes: int = 0
    host_bytes_per_gpu: int = 0
    max_gpus_per_node: int = 8
    chip: Chip | None = None
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    stands_in: bool = False

    def supports(self, precision: str) -> bool:
        """Whether the GPU multiplies matrices in this precision in hardware."""
        return precision in self.peak_flops

    @property
    def processors(self) -> Processors | None:
        """What the memory of reductions depends on; ``None``: not known."""
        return None if self.chip is None else self.chip.processors

    @property
    def cublas_workspace_bytes(self) -> int:
        """What cuBLAS keeps for each thread that multiplies; the most where the chip is not known."""
        if self.name == "cpu":
            return 0
        if self.chip is None:
            return HOPPER_CUBLAS_WORKSPACE_BYTES
        return cublas_workspace_bytes(self.chip.compute_capability)

    @property
    def driver_kept_bytes(self) -> int:
        """What the driver counts in the total and gives to no process."""
        return max(0, self.driver_vram_bytes - self.vram_bytes)

    def with_total_memory(self, driver_vram_bytes: int) -> Gpu:
        """The same GPU with another total memory, as the driver counts it.

        What the driver keeps stays the same; of a memory so small that this were half of it, nothing."""
        usable = driver_vram_bytes - self.driver_kept_bytes
        if usable < driver_vram_bytes // 2:
            usable = driver_vram_bytes
        return replace(self, vram_bytes=usable, driver_vram_bytes=driver_vram_bytes)


DEFAULT_MARGIN = 0.02
"""Share of a GPU's memory that a chosen plan leaves: twice what predictions of measured runs were off by at
worst (``zerokit.search.explain.WORST_ERROR``)."""


@frozen_dataclass
class Cluster:
    """All the machines of a job; every node alike.

    Attributes:
        gpus: on all nodes together.
        host_ram_bytes: per node, as given or found here; ``None``: neither.
        network_bytes_per_second: per node and direction, between nodes; ``None``: not given.
        gpu_assumed: nobody named the GPU, and none was found here.
        nvme_path: a folder on local NVMe on every node, when there is one.
        margin: share of each GPU's memory that a chosen plan leaves.
    """

    gpu: Gpu
    gpus: int
    nodes: int = 1
    host_ram_bytes: int | None = None
    network_bytes_per_second: float | None = None
    nvme_path: str | None = None
    nvme_bytes_per_second: float = 3e9
    gpu_assumed: bool = False
    margin: float = 0.0

    @property
    def on_cpu(self) -> bool:
        """Whether its ranks compute on CPUs, whose steps are not timed."""
        return self.gpu.name == "cpu"

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.nodes < 1:
            raise InputError("⟨gpus⟩ and ⟨nodes⟩ must be at least 1")
        if self.gpus % self.nodes:
            raise InputError(
                f"⟨gpus⟩ {self.gpus} on ⟨nodes⟩ {self.nodes}: all nodes must have the same number of GPUs; "
                f"use a multiple of {self.nodes}"
            )

    @property
    def gpus_per_node(self) -> int:
        """GPUs in each node."""
        return self.gpus // self.nodes

    @property
    def planned_bytes(self) -> int:
        """What a chosen plan may require of each GPU, as the driver counts it."""
        return int(self.gpu.driver_vram_bytes * (1 - self.margin))

    @property
    def node_network_bytes_per_second(self) -> float:
        """Between nodes, per node and direction: as given, or as usual for nodes of this GPU."""
        if self.network_bytes_per_second is not None:
            return self.network_bytes_per_second
        per_gpu = self.gpu.network_bytes_per_second
        return UNKNOWN_NETWORK_BYTES_PER_SECOND if per_gpu is None else per_gpu * self.gpus_per_node

    @property
    def host_limit_bytes(self) -> int | None:
        """Host memory per node that plans keep to: what is known of it, else what such nodes have."""
        if self.host_ram_bytes is not None:
            return self.host_ram_bytes
        return self.gpu.host_bytes_per_gpu * self.gpus_per_node or None
