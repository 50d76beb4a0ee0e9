"""What the bytes of an estimate are: one list, for the traced model and the closed form alike.

A component's value is its key in the JSON documents, ``label`` its name for people. The components of a
rank sum to its peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar


class Component(str, Enum):
    """A part of one GPU's memory."""

    label: str
    meaning: str

    def __new__(cls, value: str, meaning: str, label: str = "") -> Component:
        member = str.__new__(cls, value)
        member._value_ = value
        member.label = label or value.replace("_", " ")
        member.meaning = meaning
        return member

    # states
    PARAMETERS = "parameters", "the weights; at stage 3 the rank's shard of them"
    FROZEN_PARAMETERS = "frozen_parameters", "weights without gradients, below stage 3"
    MASTER_WEIGHTS = "master_weights", "the optimizer's own copy of the weights, which its step updates"
    OPTIMIZER_STATES = "optimizer_states", "what the optimizer keeps of each weight, such as Adam's moments"
    FIRST_OPTIMIZER = (
        "first_optimizer",
        "states of a first Adagrad of all weights, which DeepSpeed never frees; its step uses a second one",
    )
    BUFFERS = "buffers", "the model's buffers: masks, tables of positions"
    CUBLAS_WORKSPACE = (
        "cublas_workspace",
        "cuBLAS's own memory, one for each thread that runs matrix products",
        "cuBLAS workspace",
    )
    OFFLOAD_BUFFER = "offload_buffer", "a buffer through which gradients go to the host"
    # weights of stage 3 on their way
    GATHERED_PARAMETERS = (
        "gathered_parameters",
        "weights gathered from all ranks for the modules that are running",
    )
    SECOND_COPY = "second_copy", "ZeRO++ hpZ's copy of the weights inside the node"
    GATHER_BUFFERS = "gather_buffers", "flat buffers that all-gathers write to"
    GATHER_COPY = "gather_copy", "copies of what goes into an all-gather, or comes out of it"
    # gradients
    GRADIENTS = "gradients", "gradients as backward made them, one tensor for each weight"
    GRADIENT_PARTITION = "gradient_partition", "the rank's share of the reduced gradients"
    GRADIENT_BUCKET = "gradient_bucket", "buckets in which gradients wait for their reduction"
    GRADIENT_COPY = (
        "gradient_copy",
        "a copy of a gradient that is added to the accumulated ones or sent to the host",
    )
    REDUCE_COPY = "reduce_copy", "copies that a reduction makes of what it sends"
    OFFLOAD_COPY = "offload_copy", "copies of gradients on their way to the host"
    # the optimizer's step
    GRADIENT_NORM = "gradient_norm", "a gradient in fp64, for the norm"
    FLAT_GRADIENT = "flat_gradient", "the rank's gradients joined into one tensor, for the step"
    FP32_GRADIENT = (
        "fp32_gradient",
        "the rank's gradients converted to the master weights' precision, for the step",
        "fp32 gradient",
    )
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries", "what the optimizer's step allocates and frees"
    # the model at work
    ACTIVATIONS = "activations", "what the layers keep for backward, and their temporaries"
    LOSS = "loss", "logits, the loss over them and their gradients"
    SCRIPT = "script", "what a script holds beside the model: other models, outputs that it keeps"
    KV_CACHE = "kv_cache", "keys and values of the tokens so far", "KV cache"
    # before the first step
    INITIALISATION = (
        "initialisation",
        "the peak while the engine is set up, where no later one is higher",
    )
    LOADED_MODEL = (
        "loaded_model",
        "quantised weights and adapters, whole on each GPU until ZeRO-3 divides them",
    )

    def __str__(self) -> str:
        return str.__str__(self)


class HostComponent(str, Enum):
    """A part of what one rank takes of its host, or of an NVMe disk."""

    label: str
    meaning: str
    on_nvme: bool

    def __new__(cls, value: str, meaning: str, on_nvme: bool = False) -> HostComponent:
        member = str.__new__(cls, value)
        member._value_ = value
        member.label = value.replace("_", " ")
        member.meaning = meaning
        member.on_nvme = on_nvme
        return member

    PROCESS = "process", "Python, PyTorch, CUDA and DeepSpeed"
    MODEL_BEFORE_IT_MOVES = (
        "model_before_it_moves",
        "the whole model, which every rank builds on the host below stage 3, unless it is quantised; twice, "
        "where its GPU has no room to join the weights in one buffer",
    )
    DEFRAGMENTATION = "defragmentation", "stage 3's weights while they are joined into one piece, on the host"
    PARAMETERS = "parameters", "offloaded weights, pinned"
    PARAMETERS_WHILE_BUILT = (
        "parameters_while_built",
        "offloaded weights, each pinned by itself when it is made",
    )
    PARAMETER_BUFFERS = "parameter_buffers", "pinned, between NVMe and the GPU"
    MASTER_WEIGHTS = "master_weights", "the offloaded optimizer's copy of the weights"
    OPTIMIZER_STATES = "optimizer_states", "the offloaded optimizer's moments"
    GRADIENTS = "gradients", "in the master weights' precision, pinned"
    GRADIENT_PARTITION = "gradient_partition", "the rank's share of the reduced gradients, pinned"
    ACCUMULATED_GRADIENTS = (
        "accumulated_gradients",
        "whole parameters' gradients of earlier micro-batches, pinned",
    )
    ACTIVATIONS = "activations", "offloaded activations until backward needs them, pinned"
    STAGING = "staging", "updated weights on their way back to the GPU, pinned"
    OFFLOAD_BUFFER = "offload_buffer", "a buffer through which gradients come from the GPU, pinned"
    SWAP_BUFFERS = "swap_buffers", "between NVMe and the host's optimizer, pinned"
    NVME_PARAMETERS = "nvme_parameters", "weights on disk", True
    NVME_OPTIMIZER = "nvme_optimizer", "master weights, moments and gradients on disk", True

    def __str__(self) -> str:
        return str.__str__(self)


_LABELS = {component.value: component.label for component in Component}


def label(key: str) -> str:
    """A component's name for people; of a key that is none (a rehearsal's, an older report's) its words."""
    return _LABELS.get(key, key.replace("_", " "))


def by_key(parts: Mapping[Component, int] | Mapping[HostComponent, int]) -> dict[str, int]:
    """The components under their keys in JSON; those of no byte left out."""
    return {component.value: size for component, size in parts.items() if size}


def in_ram(parts: Mapping[HostComponent, int], ranks: int) -> dict[str, int]:
    """Bytes of a node's host memory, by component, when every one of its ``ranks`` holds ``parts``."""
    return {part.value: size * ranks for part, size in parts.items() if not part.on_nvme}


def on_nvme(parts: Mapping[HostComponent, int], ranks: int) -> int:
    """Bytes of a node's NVMe disk when every one of its ``ranks`` keeps ``parts``."""
    return sum(size for part, size in parts.items() if part.on_nvme) * ranks


Value = TypeVar("Value")


class LazyMapping(Mapping[str, Value], Generic[Value]):
    """Read-only; ``make`` is called once, at the first look inside."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[str, Value]]) -> None:
        self._make: Callable[[], Mapping[str, Value]] | None = make
        self._made: Mapping[str, Value] = {}

    def _content(self) -> Mapping[str, Value]:
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made

    def __getitem__(self, key: str) -> Value:
        return self._content()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def __repr__(self) -> str:
        return repr(self._content())


class Ledger:
    """Live bytes by component. :meth:`peak` is the highest total since :meth:`mark`."""

    __slots__ = ("_best", "_best_total", "amounts", "total", "watching")

    def __init__(self) -> None:
        self.amounts: dict[Component, int] = {}
        self.total = 0
        self._best_total = 0
        self._best: dict[Component, int] = {}
        self.watching = False  # keep the composition of the peak, not only its size

    def add(self, component: Component, size_bytes: int) -> None:
        """Allocate (or free, when negative)."""
        if not size_bytes:
            return
        self.amounts[component] = self.amounts.get(component, 0) + size_bytes
        self.total += size_bytes
        if self.total > self._best_total:
            self._best_total = self.total
            if self.watching:
                self._best = dict(self.amounts)

    def adopt(self, component: Component, size_bytes: int) -> None:
        """Take over what autograd allocated: at this instant it still counts among the activations."""
        self.amounts[component] = self.amounts.get(component, 0) + size_bytes
        self.total += size_bytes

    def set(self, component: Component, size_bytes: int) -> None:
        """Make a component exactly this large."""
        self.add(component, size_bytes - self.amounts.get(component, 0))

    def burst(self, component: Component, size_bytes: int) -> None:
        """Allocate and free at once: only the peak feels it."""
        self.add(component, size_bytes)
        self.add(component, -size_bytes)

    def mark(self) -> None:
        """Start watching for a new peak."""
        self._best_total = self.total
        if self.watching:
            self._best = dict(self.amounts)

    @property
    def peak(self) -> int:
        """The highest total since the last :meth:`mark`. Bytes."""
        return self._best_total

    def composition(self) -> dict[Component, int]:
        """What the peak was made of; empty components left out."""
        return {name: size for name, size in self._best.items() if size}
