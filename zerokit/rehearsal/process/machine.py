"""The fake machine: what its GPU is, what is on it, and what had to be guessed or stood in for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zerokit.rehearsal.order import FakeGpu
from zerokit.rehearsal.process import factories
from zerokit.rehearsal.process.allocator import AllocatorSettings
from zerokit.rehearsal.process.guesses import Guesses
from zerokit.rehearsal.process.ledger import GpuMemory, Unwaited, Workspaces
from zerokit.trace.recording.shapes import Shapes

if TYPE_CHECKING:
    from zerokit.rehearsal.process.messages import Messages


class UnderWay:
    """What the dispatcher does not say of the collective that goes on now.

    Attributes:
        operation: of a reduction: the dispatcher gets a boxed one that cannot be read.
        of_rank: what each rank of a group contributes to a gathering; None: what ours does.
        only_sender_has: a broadcast's values are its sender's own; else every rank holds them before.
        sender_has: the numbers that a broadcast's sender holds, where the others hold something else.
    """

    def __init__(self) -> None:
        self.operation: Any = None
        self.of_rank: Callable[[int], list[int]] | None = None
        self.only_sender_has = False
        self.sender_has: Sequence[int] | None = None

    @contextmanager
    def told(self, **facts: Any) -> Iterator[None]:
        """In this block these attributes say what the dispatcher does not."""
        before = {name: getattr(self, name) for name in facts}
        vars(self).update(facts)
        try:
            yield
        finally:
            vars(self).update(before)


PLAN_SECONDS = (0.1, 0.15)
"""Forward and backward of one shape: 129 and 145 ms, in two series on an H100, PyTorch 2.11 and cuDNN 9.19
(benchmarks/measure/data/attention-plans.jsonl). The other kernels make no plan."""


class AttentionPlans:
    """The shapes of attention that cuDNN was given with gradients: it makes a plan for each that the process
    has not met. The step time is that of shapes that were met. Where rows differ in length, most steps of a
    run's beginning have one that was not."""

    def __init__(self) -> None:
        self._shapes: set[tuple[torch.Size, torch.Size]] = set()

    def see(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """A call whose kernel is cuDNN's."""
        self._shapes.add((query.shape, key.shape))

    def note(self, lengths: tuple[int, int] | None) -> str | None:
        """What to say where rows of unlike length, the shortest and the longest, were fed to cuDNN."""
        if lengths is None or lengths[0] == lengths[1] or len(self._shapes) < 2:
            return None
        low, high = PLAN_SECONDS
        return (
            f"cuDNN's attention makes a plan for each length that a run has not met, and takes {low} to "
            f"{high} s more in that step, which the step time leaves out: pad rows to a multiple "
            "(pad_to_multiple_of), or set TORCH_CUDNN_SDPA_DEPRIORITIZED=1 for other kernels"
        )


class Machine:
    """Everything the stand-ins share.

    Attributes:
        fake: makes tensors without memory; it is never on the stack of modes.
        shapes: what operators make of them.
        lock: one operator at a time: FakeTensorMode keeps its state in plain attributes.
        observers: follow the operators in the order and the threads in which the script issues them
            (:class:`zerokit.rehearsal.process.recorder.Recorder`).
        unseen: above 0 while the rehearsal itself uses operators that no GPU would run.
        data_of_gpu: whether the GPU may have taken part in a data set that was written.
        managed_bytes: of CUDA managed memory that was asked for; part of ``host_bytes``.
        kept_evaluation_batches: after so many an evaluation moves its outputs to the host; None: never.
        product: hears of each matrix product on the GPU, with its output.
        collectives: issued while somebody observed; the last one's number.
        communicators: what the allocator had reserved when NCCL made each (at the first collective of a
            group), by the group's name.
    """

    def __init__(
        self, gpu: FakeGpu, *, rank: int, world_size: int, allocator: AllocatorSettings, messages: Messages
    ) -> None:
        self.gpu, self.rank, self.world_size = gpu, rank, world_size
        self.ledger = GpuMemory(allocator)
        self.guesses = Guesses()
        self.workspaces = Workspaces(self.ledger, gpu.capability)
        self.fake = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self.shapes = Shapes(self.fake)
        self.lock = threading.RLock()
        self.observers: list[Any] = []
        self.unseen = 0
        self.unwaited = Unwaited(self.ledger)
        self.attention_plans = AttentionPlans()
        self.under_way = UnderWay()
        self.product: Callable[[str, torch.Tensor], None] = lambda name, output: None
        self.messages = messages
        self.collectives = 0
        self.communicators: dict[str, int] = {}
        self.warnings: dict[str, int] = {}
        self.stubbed: dict[str, int] = {}
        self.pinned: set[int] = set()
        self.host_bytes = 0
        self.peak_host_bytes = 0
        self.host_phases: dict[str, int] = {}
        self.managed_bytes = 0
        self._on_host: set[int] = set()
        self._in_files: set[int] = set()
        self.written_bytes = 0
        self.data_of_gpu = False
        self.kept_evaluation_batches: int | None = None
        self._host_addresses: dict[int, int] = {}
        self._next_host_address = 0x5500_0000_0000

    @property
    def free_bytes(self) -> int:
        """What the driver says, before kernels and libraries of the first step are loaded."""
        return self.gpu.room_in_init(self.world_size) - self.ledger.allocator.reserved_bytes

    def warn(self, text: str) -> None:
        """Something the reader of the figures must know."""
        self.warnings[text] = self.warnings.get(text, 0) + 1

    def not_modelled(self, name: str, text: str) -> None:
        """The phase that goes on now takes at least what is counted: something in it is not modelled."""
        self.ledger.lower_bounds.setdefault(self.ledger.phase, set()).add(name)
        self.warn(text)

    def stub(self, name: str) -> None:
        """Something was stood in for."""
        self.stubbed[name] = self.stubbed.get(name, 0) + 1

    # ---------------------------------------------------------------- observers

    def saw_kernel(self, name: str, tensors: Any, outputs: Any = (), launches: int = 1) -> None:
        """Tell the observers of a kernel that was stood in for."""
        for observer in self.observers:
            observer.kernel(name, tensors, outputs, launches)

    def saw_runtime(
        self, kind: str, name: str, *, handle: int = 0, waits: bool = False, elements: int = 0
    ) -> None:
        """Tell the observers of a call that is no operator."""
        for observer in self.observers:
            observer.runtime(kind, name, handle=handle, waits=waits, elements=elements)

    def saw_reduction(self, tensor: torch.Tensor) -> None:
        """Tell the observers of DDP's all-reduce of a bucket, for which the optimizer waits."""
        for observer in self.observers:
            observer.reduction(tensor, self.world_size)

    # ---------------------------------------------------------------- tensors

    def empty(self, shape: Any, dtype: torch.dtype, device: Any = "cuda") -> torch.Tensor:
        """A fake tensor; one on the GPU is counted."""
        with self.fake:
            tensor: torch.Tensor = factories.empty(shape, dtype=dtype, device=device)
        if tensor.device.type == "cuda":
            self.ledger.track(tensor, "empty")
        return tensor

    def managed(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor in CUDA managed memory: PyTorch's allocator knows nothing of it, and the driver keeps it
        on the GPU as far as there is room, else on the host, where it is counted."""
        tensor = self.track_host(self.empty(shape, dtype, "cpu"))
        self.managed_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark a host tensor's storage as pinned; C++ (DDP's reducer, reducer.cpp:782) and libraries ask."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.pinned:
            self.pinned.add(key)
            weakref.finalize(storage, self.pinned.discard, key)
        return self.track_host(tensor)

    def track_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a host tensor that takes memory in the real run, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._on_host and key not in self._in_files:
            size = storage.nbytes()
            self._on_host.add(key)
            self.host_bytes += size
            self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)
            phase = self.ledger.phase
            self.host_phases[phase] = max(self.host_phases.get(phase, 0), self.host_bytes)
            weakref.finalize(storage, self._left_host, key, size)
        return tensor

    def map_file(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark a host tensor's storage as a mapped file's: its pages are the kernel's, and take no memory."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._left_host(key, storage.nbytes())
        self._in_files.add(key)
        weakref.finalize(storage, self._in_files.discard, key)
        return tensor

    def read_file(self, tensor: torch.Tensor) -> None:
        """Count a mapped tensor that stays in host memory."""
        self._in_files.discard(tensor.untyped_storage()._cdata)
        self.track_host(tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor was asked for as pinned."""
        return tensor.untyped_storage()._cdata in self.pinned

    def _left_host(self, key: int, size: int) -> None:
        if key in self._on_host:
            self._on_host.remove(key)
            self.host_bytes -= size

    def address(self, storage: Any) -> int:
        """An address of its own for every fake storage: libraries key tensors by it."""
        size = storage.nbytes()
        if not size:
            return 0
        on_gpu = self.ledger.address(storage)
        if on_gpu is not None:
            return on_gpu
        key = storage._cdata
        address = self._host_addresses.get(key)
        if address is None:
            address = self._host_addresses[key] = self._next_host_address
            self._next_host_address += -(-size // 512) * 512
            weakref.finalize(storage, self._host_addresses.pop, key, None)
        return address

    def forget_address(self, storage: Any) -> None:
        """A storage was resized: it lies elsewhere."""
        self._host_addresses.pop(storage._cdata, None)
