"""One candidate: how a job is spread over the GPUs, and what it is predicted to need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from zerokit.domain.training_settings import TrainingSettings
from zerokit.notes import Note
from zerokit.values import frozen_dataclass


@frozen_dataclass
class Strategy:
    """An engine's configuration plus what lies outside it.

    ``data_parallel`` ranks divide the batch; sequence-parallel peers share sequences, so
    ``world_size = data_parallel × tensor_parallel × pipeline_parallel × sequence_parallel``.
    """

    settings: TrainingSettings
    data_parallel: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    sequence_parallel: int = 1
    checkpointing: str = "none"  # none, selective, full

    @property
    def engine(self) -> str:
        """The engine that trains: deepspeed, fsdp2 or ddp."""
        return self.settings.engine

    @property
    def world_size(self) -> int:
        """GPUs in use."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel * self.sequence_parallel

    @property
    def context_parallel(self) -> int:
        """Ranks that share a sequence by ring attention, as FSDP2's do."""
        return self.sequence_parallel if self.engine == "fsdp2" else 1

    @property
    def ulysses(self) -> int:
        """Ranks that share a sequence by heads, as DeepSpeed's do."""
        return self.sequence_parallel // self.context_parallel

    @property
    def is_loaded_in_parts(self) -> bool:
        """Whether Transformers divides its layers as it loads them (``DistributedConfig``)."""
        return self.engine == "fsdp2" and self.tensor_parallel > 1

    @property
    def zero_ranks(self) -> int:
        """Ranks that train the same weights, sequence-parallel peers among them: what an engine divides,
        it divides over these, or over groups of them that hold replicas."""
        return self.data_parallel * self.sequence_parallel

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.settings.micro_batch * self.settings.gradient_accumulation * self.data_parallel

    def recomputed(self, attention: str) -> str:
        """What backward computes again with this attention: ``none``, ``full`` or ``selective``. Selective
        checkpointing drops attention scores, which no kernel but ``eager``'s keeps."""
        return "none" if self.checkpointing == "selective" and attention != "eager" else self.checkpointing

    @property
    def family(self) -> tuple[object, ...]:
        """All but bucket sizes and accumulation: what a measured step time speaks for."""
        return (
            *self.settings.family, self.data_parallel, self.tensor_parallel, self.pipeline_parallel,
            self.sequence_parallel, self.settings.micro_batch, self.checkpointing, self.settings.precision,
        )  # fmt: skip


@frozen_dataclass
class RankEstimate:
    """Predicted memory of one rank (or of ranks ``first`` to ``last``, all alike). Bytes.

    ``components`` is what is live at the peak, and sums to ``peak_allocated_bytes``;
    ``phase_components`` the same at the peak of each phase, empty where the model cannot divide them.
    """

    first: int
    last: int
    peak_allocated_bytes: int
    peak_phase: str
    phases: Mapping[str, int]
    components: Mapping[str, int]
    phase_components: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


REHEARSED = "rehearsed"
"""``basis`` of an estimate for which the user's own script ran with this very strategy."""


@frozen_dataclass
class MemoryEstimate:
    """Predicted memory of a run. Bytes.

    Attributes:
        min_vram_bytes: smallest per-GPU memory on which the launched run succeeds.
        unsure_bytes: how much more it may be, where it is of a closed form.
        basis: ``traced`` or ``analytic``: how the activations were found; ``rehearsed``: the user's own
            script ran on a GPU that is not there.
    """

    ranks: tuple[RankEstimate, ...]
    min_vram_bytes: int
    host_bytes_per_node: int
    host_components: Mapping[str, int] = field(default_factory=dict)
    nvme_bytes_per_node: int = 0
    assumptions: tuple[Note, ...] = ()
    basis: str = "traced"
    unsure_bytes: int = 0

    @property
    def worst(self) -> RankEstimate:
        """The rank with the highest peak."""
        return max(self.ranks, key=lambda rank: rank.peak_allocated_bytes)


@frozen_dataclass
class TimeEstimate:
    """Predicted time of one optimizer step. Seconds.

    ``bound_by`` is the largest of ``parts``: compute, link, network, pcie, host, nvme, launch, retries.

    Attributes:
        step_seconds_range: as fast and as slow as what nobody measured may make it (host, network); ``None``:
            nothing does, or not asked.
        measured_on_no_machine: of the hardware, what no step time was ever compared on: a GPU, several nodes.
    """

    step_seconds: float
    tokens_per_second_per_gpu: float
    parts: Mapping[str, float]
    bound_by: str
    step_seconds_range: tuple[float, float] | None = None
    measured_on_no_machine: tuple[str, ...] = ()


@frozen_dataclass
class Saving:
    """What one save takes. Bytes, and seconds without the disk's own time.

    Attributes:
        weights_bytes: on disk, of the model that ``save_model`` writes (of adapters: theirs alone); 0 where
            it writes none that load.
        checkpoint_bytes: on disk, of one DeepSpeed checkpoint, all ranks' files together.
        frozen_bytes: of ``checkpoint_bytes``, the frozen weights; a Trainer that trains adapters leaves them
            out.
        host_bytes: on the node of rank 0, beside what training holds there: the gathered weights.
        seconds: to gather the weights and copy them to the host; 0 where nothing is gathered.
    """

    weights_bytes: int
    checkpoint_bytes: int
    host_bytes: int
    seconds: float
    frozen_bytes: int = 0


@frozen_dataclass
class Candidate:
    """A strategy with its predictions. ``saving``: known of those that are shown."""

    strategy: Strategy
    memory: MemoryEstimate
    time: TimeEstimate
    why: str = ""
    saving: Saving | None = None


_LABELS = {
    "compute": "compute",
    "launch": "kernel launches",
    "link": "link",
    "network": "network",
    "pcie": "PCIe",
    "host": "optimizer on the CPU",
    "nvme": "NVMe",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer on the GPU",
    "retries": "allocator retries",
}
BOUNDS = {
    "compute": "the GPUs' compute",
    "launch": "the host, which launches kernels more slowly than the GPU runs them",
    "link": "the link between the GPUs of a node",
    "network": "the network between nodes",
    "pcie": "PCIe, over which offloaded data travels",
    "host": "the optimizer on the CPU",
    "nvme": "the NVMe disk",
    "bubble": "the pipeline's filling and draining",
    "optimizer": "the optimizer on the GPU",
    "retries": "the allocator, which gives memory back and maps it again",
}
"""What a step is bound by where the part takes most of it, in words."""


def label(part: str) -> str:
    """The part's name for people; a key that this version does not know, as it is."""
    return _LABELS.get(part, part)
