"""``torch.cuda`` and ``torch.accelerator`` of the fake GPU."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor

from zerokit.rehearsal.process import factories
from zerokit.rehearsal.process.endings import NotRehearsed
from zerokit.rehearsal.process.machine import Machine
from zerokit.timing import operators

_ASKED_IN_VAIN = 8
"""How often an event is not done yet: more than the three that ZeRO-3 asks about each."""


class Event:
    """``torch.cuda.Event``."""

    machine: Machine
    numbers = itertools.count(1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.number = next(self.numbers)
        self._asked = _ASKED_IN_VAIN  # one that was never recorded is done

    def record(self, stream: Stream | None = None) -> None:
        """Nothing runs."""
        self._asked = 0
        self._saw(operators.RECORD, stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing runs."""
        self._saw(operators.WAIT_EVENT, stream)

    def synchronize(self) -> None:
        """Nothing runs."""
        self._saw(operators.CALL, waits=True)

    def _saw(self, kind: str, stream: Stream | None = None, waits: bool = False) -> None:
        threads = self.machine.ledger.threads
        before = getattr(threads, "stream", 0)
        threads.stream = getattr(stream, "number", before)
        self.machine.saw_runtime(kind, "event", handle=self.number, waits=waits)
        threads.stream = before

    def query(self) -> bool:
        """Not done the first few times, since the host is ahead of a GPU: whoever then waits is seen to.

        ZeRO-3 asks so about each gather and each reduction, and waits for the third that is not done
        (partitioned_param_coordinator.py:401 and stage3.py:1664, DeepSpeed 0.19.8). Whether there is anything
        left to wait for, the played lanes say. A loop that asks until it is done comes to its end.
        """
        self._asked += 1
        return self._asked > _ASKED_IN_VAIN

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds: made up, never zero, since scripts divide by it."""
        return 1.0


class Stream:
    """``torch.cuda.Stream`` of the one machine of this process."""

    streams: Streams
    numbers = itertools.count()

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.number = next(self.numbers)
        self.device = torch.device("cuda", 0)
        self.cuda_stream = self.stream_id = self.number
        self.device_index = 0
        self.device_type = 1
        self.priority = priority
        self._before: Stream | None = None

    def wait_event(self, event: Event) -> None:
        """Nothing runs."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Nothing runs."""
        if stream.number != self.number:
            with self.streams.use(self):
                self.streams.machine.saw_runtime(operators.WAIT_STREAM, "wait_stream", handle=stream.number)

    def record_event(self, event: Event | None = None) -> Event:
        """An event that is done."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Everything is done."""
        return True

    def is_capturing(self) -> bool:
        """CUDA graphs are not captured."""
        return False

    def synchronize(self) -> None:
        """Nothing runs."""
        self.streams.machine.saw_runtime(operators.CALL, "stream_synchronize", waits=True)

    def __enter__(self) -> Stream:
        self._before = self.streams.set_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.streams.set_current(self._before)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Streams:
    """Streams of one machine, and the current one of each thread."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._current = threading.local()
        Event.machine = machine
        Stream.streams, Stream.numbers = self, itertools.count()  # the default stream is number 0
        self.default = Stream()

    def current(self, device: Any = None) -> Stream:
        """Stream of this thread."""
        return getattr(self._current, "stream", self.default)

    def set_current(self, stream: Stream | None) -> Stream:
        """Make it this thread's; returns the one before."""
        before = self.current()
        if stream is not None:
            self._current.stream = stream
            self.machine.ledger.threads.stream = getattr(stream, "number", 0)
        return before

    @contextlib.contextmanager
    def use(self, stream: Stream | None) -> Iterator[Stream | None]:
        """``with torch.cuda.stream(stream):``."""
        before = self.set_current(stream)
        try:
            yield stream
        finally:
            self.set_current(before)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Functions by their names in ``torch.cuda``."""
        return {
            "Stream": Stream,
            "ExternalStream": Stream,
            "Event": Event,
            "current_stream": self.current,
            "default_stream": lambda device=None: self.default,
            "set_stream": self.set_current,
            "stream": self.use,
            "synchronize": lambda device=None: self.machine.saw_runtime(
                operators.CALL, "synchronize", waits=True
            ),
        }


_CUDA_VERSION = "12.8"
_NCCL_VERSION = (2, 27, 5)
_RANGE_FUNCTIONS = ("range_push", "range_pop", "mark", "range_start", "range_end")
_ACCELERATOR = {
    "current_device_index": "current_device", "set_device_index": "set_device",
    "get_memory_info": "mem_get_info",
    **{
        name: name
        for name in (
            "device_count", "is_available", "synchronize", "empty_cache", "current_stream", "set_stream",
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
            "reset_peak_memory_stats", "memory_stats",
        )
    },
}  # fmt: skip
"""What ``torch.accelerator`` calls functions of ``torch.cuda``."""


class _Current:
    """The index that ``cuda`` without one means. All indexes are the rank's one GPU."""

    def __init__(self) -> None:
        self.index = 0

    def set(self, device: Any) -> int:
        """Returns the one before; a negative index changes nothing, as in CUDA."""
        before, index = self.index, _index(device)
        if index >= 0 and index != before:
            self.index = index
            fake_tensor.FakeTensorMode.cache_clear()  # its entries hold what ``cuda`` meant
        return before


def _index(device: Any) -> int:
    """Index of ``1``, ``cuda:1`` or a device; -1: none is named."""
    if isinstance(device, torch.Tensor):
        device = device.device
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    return -1 if index is None else int(index)


def _device_context(current: _Current) -> type:
    class DeviceContext:
        """``with torch.cuda.device(1):``."""

        def __init__(self, device: Any = None) -> None:
            self.idx = _index(device)
            self.prev_idx = -1

        def __enter__(self) -> DeviceContext:
            self.prev_idx = current.set(self.idx)
            return self

        def __exit__(self, *exc: object) -> None:
            current.set(self.prev_idx)

    return DeviceContext


_DRIVERS_LIBRARY = "libnvidia-ml"
"""NVML, which knows the GPUs of this machine, and leaves a file where it starts (DeepSpeed's accelerator
starts it when it is imported)."""


def _hide_driver() -> None:
    load = ctypes.CDLL.__init__

    def load_others(library: ctypes.CDLL, name: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(name, str) and Path(name).name.startswith(_DRIVERS_LIBRARY):
            raise OSError(f"{name}: a rehearsal asks no driver")
        load(library, name, *args, **kwargs)

    ctypes.CDLL.__init__ = load_others  # type: ignore[assignment]


def install(machine: Machine) -> None:
    """Replace what asks the driver."""
    _hide_driver()
    cuda = torch.cuda
    current = _Current()
    functions = _device_functions(machine, current) | _memory_functions(machine)
    functions |= Streams(machine).functions()
    for name, function in functions.items():
        setattr(cuda, name, function)
        for module in (cuda.memory, cuda.random, cuda.streams):
            if hasattr(module, name):
                setattr(module, name, function)
    cuda.device = cuda.device_of = cuda._DeviceGuard = _device_context(current)
    cuda._initialized = True
    cuda._exchange_device, cuda._maybe_exchange_device = _distinct(current.set), _distinct(current.set)
    for name in _RANGE_FUNCTIONS:
        setattr(cuda.nvtx, name, lambda *args, **kwargs: 0)
    cuda.nccl.version = lambda: _NCCL_VERSION
    cuda.nccl.is_available = lambda tensors=None: True
    torch.version.cuda = torch.version.cuda or _CUDA_VERSION
    torch.backends.cuda.is_built = lambda: True
    _patch_bindings(machine, functions, current)
    for name, source in _ACCELERATOR.items():
        setattr(torch.accelerator, name, _distinct(functions[source]))
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    torch.accelerator.device_index = cuda.device
    _patch_generators(machine)
    _patch_recurrent_layers()
    fake_tensor.init_gpu_context = lambda device: None
    type(machine.fake).avoid_device_init = property(lambda self: True)
    torch.get_device_module = _device_module


def _device_module(device: Any = None) -> Any:
    kind = "cuda" if device is None else torch.device(device).type
    return getattr(torch, kind)


def _device_functions(machine: Machine, current: _Current) -> dict[str, Callable[..., Any]]:
    gpu = machine.gpu
    properties = _properties(machine)
    return {
        "is_available": lambda: True,
        "device_count": lambda: gpu.count,
        "current_device": lambda: current.index,
        "set_device": _without_result(current.set),
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_name": lambda device=None: gpu.title,
        "is_bf16_supported": lambda *args, **kwargs: gpu.capability >= (8, 0),
        "is_tf32_supported": lambda: gpu.capability >= (8, 0),
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "can_device_access_peer": lambda device, peer: True,
        "utilization": lambda *args: 0,
        "ipc_collect": lambda: None,
        "_sleep": lambda cycles: None,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device="cuda": _generator_state(),
        "get_rng_state_all": lambda: [_generator_state() for _ in range(gpu.count)],
        "set_rng_state": lambda new_state, device="cuda": None,
        "set_rng_state_all": lambda new_states: None,
    }


def _properties(machine: Machine) -> SimpleNamespace:
    gpu = machine.gpu
    major, minor = gpu.capability
    return SimpleNamespace(
        name=gpu.title, major=major, minor=minor, total_memory=gpu.total_memory_bytes,
        multi_processor_count=gpu.multiprocessors, warp_size=32, max_threads_per_block=1024,
        max_threads_per_multi_processor=gpu.threads_per_multiprocessor, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=(227 if major >= 9 else 163 if gpu.capability == (8, 0) else 99) << 10,
        shared_memory_per_multiprocessor=(228 if major >= 9 else 164) << 10, regs_per_multiprocessor=65536,
        gcnArchName="", is_integrated=False, is_multi_gpu_board=False, L2_cache_size=gpu.l2_cache_bytes,
        uuid="0", pci_bus_id=0, pci_device_id=0, pci_domain_id=0,
    )  # fmt: skip


def _memory_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    ledger, total = machine.ledger, machine.gpu.total_memory_bytes

    def reset(device: Any = None) -> None:
        ledger.reset_peaks()

    return {
        "memory_allocated": lambda device=None: ledger.allocated_bytes,
        "max_memory_allocated": lambda device=None: ledger.peak_since_reset_bytes,
        "memory_reserved": lambda device=None: ledger.allocator.reserved_bytes,
        "max_memory_reserved": lambda device=None: ledger.allocator.peak_reserved_bytes,
        "memory_cached": lambda device=None: ledger.allocator.reserved_bytes,
        "max_memory_cached": lambda device=None: ledger.allocator.peak_reserved_bytes,
        "memory_stats": lambda device=None: memory_stats(machine),
        "memory_stats_as_nested_dict": lambda device=None: {},
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (total - ledger.allocator.reserved_bytes, total),
        "memory_summary": lambda *args, **kwargs: "",
        "memory_snapshot": lambda *args, **kwargs: [],
        "empty_cache": ledger.empty_cache,
        "set_per_process_memory_fraction": lambda *args, **kwargs: None,
    }


def memory_stats(machine: Machine) -> dict[str, int]:
    """``torch.cuda.memory_stats()``: the figures that scripts read."""
    ledger = machine.ledger
    allocated = ledger.allocated_bytes, ledger.peak_since_reset_bytes
    reserved = ledger.allocator.reserved_bytes, ledger.allocator.peak_reserved_bytes
    figures: dict[str, int] = {"num_alloc_retries": ledger.allocator.retries, "num_ooms": 0}
    for name, (current, peak) in {
        "allocated_bytes": allocated,
        "active_bytes": allocated,
        "requested_bytes": allocated,
        "reserved_bytes": reserved,
    }.items():
        for pool in ("all", "small_pool", "large_pool"):
            of_kinds = {"current": current, "peak": peak, "allocated": current, "freed": 0}
            figures |= {f"{name}.{pool}.{kind}": size for kind, size in of_kinds.items()}
    return figures


def _generator_state() -> torch.Tensor:
    """Seed and offset (``aten/src/ATen/cuda/CUDAGeneratorImpl.cpp``)."""
    return factories.zeros(16, dtype=torch.uint8)


def _without_result(function: Callable[..., Any]) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    return call


def _patch_bindings(machine: Machine, functions: dict[str, Callable[..., Any]], current: _Current) -> None:
    """Functions of ``torch._C`` that a CPU build lacks, or that ask the driver."""
    bindings: dict[str, Callable[..., Any]] = {
        "_cuda_getDevice": _distinct(functions["current_device"]),
        "_cuda_setDevice": _distinct(functions["set_device"]),
        "_cuda_getDeviceCount": lambda: machine.gpu.count,
        "_cuda_exchangeDevice": _distinct(current.set),
        "_cuda_maybeExchangeDevice": _distinct(current.set),
        "_cuda_memoryStats": lambda device=0: {},
        "_cuda_resetPeakMemoryStats": functions["reset_peak_memory_stats"],
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_getCurrentRawStream": lambda device=0: 0,
        "_cuda_getCompiledVersion": lambda: 12080,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_emptyCache": machine.ledger.empty_cache,
        "_cuda_synchronize": lambda: None,
        "_cuda_attach_out_of_memory_observer": lambda observer: None,
        "_cuda_record_memory_history": lambda *args, **kwargs: None,
        "_cuda_memorySnapshot": lambda *args: {"segments": [], "device_traces": []},
        "_cuda_setMemoryMetadata": lambda text: None,
        "_cuda_getMemoryMetadata": lambda: "",
    }
    # what decides the layout of a convolution's result; a CUDA build asks the driver for its choice
    bindings["_select_conv_backend"] = lambda *args, **kwargs: torch._C._ConvBackend.Cudnn
    bindings["_scatter"] = _to_one_device
    for name, function in bindings.items():
        setattr(torch._C, name, function)


def _to_one_device(tensor: torch.Tensor, devices: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    """``DataParallel`` over the GPU that a process sees; over several it would copy the model to each."""
    if len(devices) != 1:
        raise NotRehearsed("DataParallel", f"one process for {len(devices)} GPUs is not rehearsed: use DDP")
    return (tensor.to("cuda"),)


def _patch_recurrent_layers() -> None:
    """A GPU runs them whole in cuDNN, which a CPU build does not even try to."""

    def refusing(name: str) -> Callable[..., Any]:
        original = getattr(torch._VF, name)

        def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.is_cuda and torch.backends.cudnn.enabled:
                reason = "cuDNN chooses a recurrent layer's reserve and workspace, which are not modelled"
                raise NotRehearsed(f"torch.{name}", reason)
            return original(tensor, *args, **kwargs)

        return run

    # joins the weights in one buffer, with cuDNN's help: a CUDA build would ask the driver for it
    torch.nn.RNNBase.flatten_parameters = lambda self: None
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        setattr(torch._VF, name, refusing(name))


def _distinct(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own: Dynamo tells functions apart by identity."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def _patch_generators(machine: Machine) -> None:
    real_generator = torch.Generator

    def new(cls: Any, device: Any = None) -> Any:
        on_gpu = device is not None and torch.device(device).type == "cuda"
        return real_generator.__new__(of_gpu if on_gpu and cls is generator else cls)

    body = {"__new__": new, "__doc__": "``torch.Generator(device='cuda')``: one on the CPU stands for it."}
    generator = type("Generator", (real_generator,), body)
    states = {
        "get_state": lambda self: _generator_state(),
        "set_state": lambda self, new_state: self,
        "__doc__": "Its state has the size of one on a GPU: DeepSpeed's checkpointing keeps and restores it.",
    }
    of_gpu = type("Generator", (generator,), states)
    torch.Generator = generator
    torch.cuda.default_generators = tuple(of_gpu() for _ in range(machine.gpu.count))
    torch.random.fork_rng = lambda *args, **kwargs: contextlib.nullcontext()
