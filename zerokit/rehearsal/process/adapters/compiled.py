"""``torch.compile``: Dynamo and Inductor themselves, with kernels that do nothing.

Dynamo traces the script's frames, Inductor lowers, fuses and plans buffers, and its own wrapper allocates
and frees them on the fake GPU; only the kernels it would hand to Triton are silent. Nothing is put in place
before the script first compiles. Where Triton is not installed there is nothing to compile with: the code
then runs uncompiled, which the answer says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._triton import has_triton_package

from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.mode import FakeCuda
from zerokit.rehearsal.process.phases import Context


class SilentKernel:
    """What Inductor gets for a Triton kernel: one that does nothing, but is tuned at its first run as a real
    one.

    A kernel with several configurations is timed in each (``CachingAutotuner.benchmark_all_configs``,
    ``torch/_inductor/runtime/triton_heuristics.py``). Beside copies of what it writes to, there is a buffer
    of the L2 cache's size that is overwritten between runs (``InductorBenchmarker.benchmark_gpu``,
    ``runtime/benchmarking.py``). Nothing of that stays allocated, but its segments stay reserved.

    Args:
        argument_names: of the kernel, in their order.
        mutated_names: arguments that a timed run must not change.
        is_timed: whether there are configurations to choose from.
    """

    def __init__(
        self, machine: Machine, argument_names: Sequence[str] = (), mutated_names: Sequence[str] = (), *,
        is_timed: bool = False,
    ) -> None:  # fmt: skip
        self._machine = machine
        self._argument_names = tuple(argument_names)
        self._mutated_names = frozenset(mutated_names)
        self._is_timed = is_timed

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Run the graph; its outputs belong to Inductor's wrapper."""
        if self._is_timed:
            self._is_timed = False
            self._time(dict(zip(self._argument_names, args, strict=False)) | kwargs)
        twins.forget((args, kwargs))

    def _time(self, arguments: dict[str, Any]) -> None:
        ledger = self._machine.ledger
        copies = self._copies(arguments)
        ledger.pass_through(copies, "autotuning")  # a run to warm up
        with ledger.holding((self._machine.gpu.l2_cache_bytes,), "autotuning"):
            ledger.pass_through(copies, "autotuning")

    def _copies(self, arguments: dict[str, Any]) -> list[int]:
        """On the GPU as long as they raise no peak, else on the host (``copy_args_to_cpu_if_needed``)."""
        ledger = self._machine.ledger
        budget = ledger.peak_since_reset_bytes - ledger.allocated_bytes
        copies = []
        for name, value in arguments.items():
            if name not in self._mutated_names or not isinstance(value, FakeTensor):
                continue
            elements = 1 + sum(
                (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
            )
            size = int(elements) * value.element_size()
            if size <= budget:
                budget -= size
                copies.append(size)
        return copies

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def of_source(context: Context, name: str, source: str) -> SilentKernel:
    """Read the Python that Inductor writes: its decorator lists the configurations; nothing is compiled."""
    from torch._inductor.codecache import PyCodeCache

    try:
        tuner = getattr(PyCodeCache.load(source), name)
        return SilentKernel(
            context.machine,
            tuner.fn.arg_names,
            tuner.mutated_arg_names,
            is_timed=len(tuner.configs) > 1 and not torch.are_deterministic_algorithms_enabled(),
        )
    except Exception as error:
        context.machine.warn(f"torch.compile: how its kernels are tuned is not known ({error})")
        return SilentKernel(context.machine)


_INTERFACE = (
    "get_device_properties", "is_available", "device_count", "current_device", "set_device", "synchronize",
    "current_stream", "stream", "set_stream", "memory_allocated", "is_bf16_supported",
)  # fmt: skip
_OFF = {
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "compile_threads": 1,
    "size_asserts": False,
    "alignment_asserts": False,
    "nan_asserts": False,
    "joint_graph_constant_folding": False,
}
"""Caches of other runs, worker processes, and checks of values that are not there."""


_WITHOUT_TRITON = (
    "torch.compile: Triton is not installed here, so the code ran uncompiled and may need other memory than "
    "on the GPU (pip install triton)"
)


def install(context: Context) -> None:
    """``torch.compile`` puts the rest in place when it is first called."""
    compile_ = torch.compile
    ready: list[bool] = []

    @functools.wraps(compile_)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not has_triton_package():
            return _uncompiled(context, args[0] if args else kwargs.get("model"))
        if not ready:
            ready.append(True)
            import torch._inductor.compile_fx as compile_fx

            # else Dynamo leaves every frame under a dispatch mode alone (torch/_dynamo/convert_frame.py)
            FakeCuda.is_infra_mode = classmethod(lambda cls: True)
            torch.get_device_module.__wrapped__ = torch.get_device_module
            torch.compiler.allow_in_graph(torch.nn.functional.scaled_dot_product_attention)
            for name in ("compile_fx", "compile_fx_inner"):
                setattr(compile_fx, name, _without_mode(context, getattr(compile_fx, name)))
            _configure()
            _silence_triton(context)
            _device_interface(context)
            _guards()
            _random_operators()
            context.machine.stub("kernels of torch.compile")
        return compile_(*args, **kwargs)

    torch.compile = wrapped


def _uncompiled(context: Context, model: Any) -> Any:
    """What was to be compiled, as it is; said when it runs, as libraries decorate what nobody calls."""
    if model is None:
        return functools.partial(_uncompiled, context)
    if isinstance(model, torch.nn.Module):
        context.machine.stub(_WITHOUT_TRITON)
        return model

    @functools.wraps(model)
    def run(*args: Any, **kwargs: Any) -> Any:
        context.machine.stub(_WITHOUT_TRITON)
        return model(*args, **kwargs)

    return run


def _without_mode(context: Context, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiling works on shapes of its own."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context.phases.depth.needs_whole("a compiler plans several layers at once")
        with context.machine.lock, _disable_current_modes():
            return function(*args, **kwargs)

    return wrapped


def _configure() -> None:
    import torch._functorch.config as functorch_config
    import torch._inductor.config as config

    for name, value in _OFF.items():
        if hasattr(config, name):
            setattr(config, name, value)
    config.triton.cudagraphs = False
    functorch_config.enable_autograd_cache = False
    # a generator's state on the GPU would be kept by its index: the fake one's is on the host
    functorch_config.graphsafe_rng_functionalization = False


def _silence_triton(context: Context) -> None:
    import torch._inductor.async_compile as async_compile
    import torch._inductor.runtime.triton_helpers as triton_helpers
    import torch._inductor.scheduler as scheduler
    import torch._inductor.utils as inductor_utils
    import torch.utils._triton as triton_utils
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    for module in (triton_utils, scheduler, inductor_utils):
        for name in ("has_triton", "has_triton_package"):
            if hasattr(module, name):
                setattr(module, name, lambda *args: True)
    async_compile.AsyncCompile.triton = lambda self, name, source, *args, **kwargs: of_source(
        context, name, source
    )
    async_compile.AsyncCompile.wait = lambda self, scope: None
    triton_helpers.set_driver_to_gpu = lambda: None  # each kernel's source asks for the machine's own driver
    major, minor = torch.cuda.get_device_capability()

    class Driver(SimpleNamespace):
        """Triton's active driver."""

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    driver.set_active(Driver(
        get_current_target=lambda: GPUTarget("cuda", major * 10 + minor, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_device_capability=lambda device=0: (major, minor),
        get_device_interface=lambda: torch.cuda,
    ))  # fmt: skip


def _device_interface(context: Context) -> None:
    from torch._dynamo.device_interface import CudaInterface

    major, minor = context.machine.gpu.capability
    for name in _INTERFACE:
        if hasattr(CudaInterface, name) and hasattr(torch.cuda, name):
            setattr(CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    CudaInterface.get_compute_capability = staticmethod(lambda device=None: major * 10 + minor)
    CudaInterface.is_triton_capable = staticmethod(lambda device=None: True)
    CudaInterface.raise_if_triton_unavailable = staticmethod(lambda device=None: None)
    CudaInterface.get_raw_stream = staticmethod(lambda device=0: 0)
    CudaInterface.exchange_device = staticmethod(lambda device: 0)
    CudaInterface.maybe_exchange_device = staticmethod(lambda device: 0)
    worker = CudaInterface.Worker
    worker.get_device_properties = staticmethod(torch.cuda.get_device_properties)
    worker.current_device = staticmethod(lambda: 0)
    worker.set_device = staticmethod(lambda device: None)


def _guards() -> None:
    """C++ shortcuts of Inductor's wrapper, through the dispatcher instead."""
    guards = torch._C._dynamo.guards

    def empty(size: Any, stride: Any, dtype: Any, device: str) -> Any:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    guards._empty_strided_cuda = lambda size, stride, dtype: empty(size, stride, dtype, "cuda")
    guards._empty_strided_cpu = lambda size, stride, dtype: empty(size, stride, dtype, "cpu")
    guards._reinterpret_tensor = lambda tensor, size, stride, offset=0: torch.as_strided(
        tensor, size, stride, tensor.storage_offset() + offset
    )
    guards.assert_size_stride = lambda *args, **kwargs: None
    if hasattr(guards, "assert_alignment"):
        guards.assert_alignment = lambda *args, **kwargs: None


def _random_operators() -> None:
    """Recomputed attention and dropout keep the random state of their forward (``rng_prims.py``)."""
    from torch._prims import rng_prims

    def save(mode: FakeCuda, operator: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return torch.cuda.get_rng_state(), operator(*args, **kwargs)

    def use(mode: FakeCuda, state: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return operator(*args, **kwargs)

    rng_prims.run_and_save_rng_state.py_impl(FakeCuda)(save)
    rng_prims.run_with_rng_state.py_impl(FakeCuda)(use)
