"""cuDNN's own choice of an engine for a convolution, and its workspace, asked for without a GPU.

cuDNN answers for a device that is described to it (``CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR``, meant for
compiling ahead of time): its heuristics rank the engines and their plans say what workspace they take. Needs
the cuDNN of the run's PyTorch (a CUDA build, or the wheel ``nvidia-cudnn-cu13``); where there is none, or one
without this descriptor, the workspace is not modelled.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from zerokit.rehearsal.order import FakeGpu
from zerokit.rehearsal.process import temporaries
from zerokit.rehearsal.process.machine import Machine

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"

# the numbers of cudnn_graph.h (cuDNN 9.19): descriptors, …
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN, _GRAPH, _TENSOR, _DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
# … types of attributes, …
_INT64_TYPE, _DTYPE_TYPE, _FLOAT_TYPE, _CONVOLUTION_MODE, _HEURISTICS_MODE = 3, 1, 4, 7, 8
_NOTE_TYPE, _DESCRIPTOR_TYPE, _CHAR_TYPE = 11, 15, 24
# … and values
_CROSS_CORRELATION, _FLOAT32 = 1, 0
_INSTANT, _MODE_B, _FALLBACK = 0, 1, 2
_TENSOR_CORE, _DOWN_CONVERT, _NONDETERMINISTIC = 0, 1, 4
_RESULTS, _ENGINE_OF, _NOTES, _CONFIG_OF_PLAN, _WORKSPACE, _DEVICE_OF_PLAN = 202, 300, 1303, 401, 402, 407

_OPERATIONS = {  # descriptor; attributes of alpha, beta, convolution, w, x and y
    FORWARD: (10, 700, 701, 702, 703, 704, 705),
    INPUT_GRADIENT: (12, 706, 707, 708, 709, 710, 711),
    WEIGHT_GRADIENT: (11, 712, 713, 714, 715, 716, 717),
}
_DEVICE_FACTS = 2702
_MOST_CONFIGS, _MOST_NOTES = 256, 16
_CUDA_DRIVER = 13000
_SHARED_MEMORY_BYTES = {
    (7, 0): 98304, (7, 5): 65536, (8, 0): 166912, (9, 0): 232448, (10, 0): 232448,
}  # fmt: skip
"""Per block at most (CUDA C++ Programming Guide, specifications by capability); elsewhere 101,376."""

_Descriptor = ctypes.c_void_p


class CudnnError(Exception):
    """cuDNN refused, with its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One of cuDNN's three operations.

    ``x`` is the input or its gradient, ``y`` the output or its gradient: sizes, batch and channels first;
    ``dtype`` is cuDNN's number of it, ``alignments`` those of x, w and y in bytes.
    """

    operation: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    dtype: int
    channels_last: bool
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    alignments: tuple[int, int, int] = (32, 32, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What PyTorch lets cuDNN choose from (``Conv_v8.cpp``, filterEngineConfigs and its callers)."""

    tensor_cores: bool = True
    deterministic: bool = False
    mode_b: bool = False


def _device_facts(gpu: FakeGpu) -> str:
    """A device as cuDNN describes one.

    Clock and cache are an H200's for all: of 40 to 120 answers for each of eight GPUs none changed with them,
    nor with the multiprocessors. On Hopper up to 3 of 120 changed with the memory's clock.
    """
    major, minor = gpu.capability
    return json.dumps({
        "deviceVer": major * 100 + minor * 10, "driverVer": _CUDA_DRIVER, "cudaDeviceId": 0,
        "deviceName": gpu.title, "totalGlobalMem": gpu.total_memory_bytes,
        "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
        "multiProcessorCount": gpu.multiprocessors, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": _SHARED_MEMORY_BYTES.get(gpu.capability, 101376),
        "reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0, "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32 if major in (7, 9, 10) or minor == 0 else 24, "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": gpu.threads_per_multiprocessor, "pciDeviceId": 0, "isTccDriver": 0,
        "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": gpu.memory_clock_mhz * 1000,
        "l2CacheSize": 62914560,
    })  # fmt: skip


def _strides(sizes: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    order = [0, *range(2, len(sizes)), 1] if channels_last else list(range(len(sizes)))
    strides, step = [0] * len(sizes), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= sizes[dimension]
    return tuple(strides)


def _library() -> ctypes.CDLL:
    """The one that PyTorch has loaded, else the wheel's. Raises OSError: there is none."""
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libcudnn.so.9")
    spec = importlib.util.find_spec("nvidia.cudnn") if importlib.util.find_spec("nvidia") else None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        return ctypes.CDLL(str(Path(folder) / "lib" / "libcudnn.so.9"))
    raise OSError("no libcudnn.so.9")


class Cudnn:
    """A cuDNN that was told of a GPU. Raises OSError: there is no cuDNN here. Raises CudnnError: it cannot
    answer without a device."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._library = _library()
        self._known: dict[tuple[Convolution, Choice, bool], int] = {}
        facts = ctypes.create_string_buffer(_device_facts(gpu).encode())
        self._device = self._create(_DEVICE, [])
        self._check(self._library.cudnnBackendSetAttribute(
            self._device, _DEVICE_FACTS, _CHAR_TYPE, ctypes.c_int64(len(facts)), facts
        ))  # fmt: skip
        self._finalize(self._device)

    def workspace_bytes(self, convolution: Convolution, choice: Choice, *, search: bool = False) -> int:
        """Of the plan that PyTorch takes: the first of the heuristics' that can be made. ``search``: what
        ``torch.backends.cudnn.benchmark`` takes to try all plans: the largest of them. Raises CudnnError:
        cuDNN has no answer."""
        key = convolution, choice, search
        if key not in self._known:
            created: list[_Descriptor] = []
            try:
                self._known[key] = self._ask(convolution, choice, search, created)
            finally:
                for descriptor in created:
                    self._library.cudnnBackendDestroyDescriptor(descriptor)
        return self._known[key]

    def _ask(self, convolution: Convolution, choice: Choice, search: bool, created: list[_Descriptor]) -> int:
        graph = self._graph(convolution, created)
        first = _MODE_B if choice.mode_b and not search else _INSTANT
        sizes: list[int] = []
        for mode in (first, _FALLBACK):
            for config in self._configs(graph, mode, created):
                if not self._passes(config, choice, convolution.dtype, created):
                    continue
                with contextlib.suppress(CudnnError):
                    sizes.append(self._plan_bytes(config, created))
                    if not search:
                        return sizes[0]
        if not sizes:
            raise CudnnError("no engine runs this convolution")
        return max(sizes)

    # ---------------------------------------------------------------- descriptors

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.create_string_buffer(1024)
            self._library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
            raise CudnnError(f"status {status}: {text.value.decode(errors='replace')}")

    def _create(self, kind: int, created: list[_Descriptor]) -> _Descriptor:
        descriptor = _Descriptor()
        self._check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
        created.append(descriptor)
        return descriptor

    def _finalize(self, descriptor: _Descriptor) -> _Descriptor:
        self._check(self._library.cudnnBackendFinalize(descriptor))
        return descriptor

    def _set(self, descriptor: _Descriptor, attribute: int, kind: int, values: Any) -> None:
        self._check(self._library.cudnnBackendSetAttribute(
            descriptor, attribute, kind, ctypes.c_int64(len(values)), values
        ))  # fmt: skip

    def _integers(self, descriptor: _Descriptor, attribute: int, values: Sequence[int]) -> None:
        self._set(descriptor, attribute, _INT64_TYPE, (ctypes.c_int64 * len(values))(*values))

    def _enumerated(self, descriptor: _Descriptor, attribute: int, kind: int, value: int) -> None:
        self._set(descriptor, attribute, kind, (ctypes.c_int * 1)(value))

    def _refer(self, descriptor: _Descriptor, attribute: int, referred: _Descriptor) -> None:
        self._set(descriptor, attribute, _DESCRIPTOR_TYPE, (_Descriptor * 1)(referred))

    def _get(self, descriptor: _Descriptor, attribute: int, kind: int, values: Any) -> Any:
        count = ctypes.c_int64()
        self._check(self._library.cudnnBackendGetAttribute(
            descriptor, attribute, kind, ctypes.c_int64(len(values)), ctypes.byref(count), values
        ))  # fmt: skip
        return values[: count.value]

    # ---------------------------------------------------------------- a convolution

    def _graph(self, convolution: Convolution, created: list[_Descriptor]) -> _Descriptor:
        """As ``build_opgraph`` does (``Conv_v8.cpp``)."""
        tensors = {
            name: self._tensor(name, sizes, alignment, convolution, created)
            for name, sizes, alignment in zip(
                "xwy", (convolution.x, convolution.w, convolution.y), convolution.alignments, strict=True
            )
        }
        layer = self._create(_CONVOLUTION, created)
        precision = convolution.dtype if convolution.dtype == 1 else _FLOAT32  # doubles in themselves
        self._enumerated(layer, 100, _DTYPE_TYPE, precision)
        self._enumerated(layer, 101, _CONVOLUTION_MODE, _CROSS_CORRELATION)
        self._integers(layer, 102, convolution.dilation)
        self._integers(layer, 103, convolution.stride)
        self._integers(layer, 104, convolution.padding)
        self._integers(layer, 105, convolution.padding)
        self._integers(layer, 106, [len(convolution.stride)])
        self._finalize(layer)
        kind, alpha, beta, described, w, x, y = _OPERATIONS[convolution.operation]
        operation = self._create(kind, created)
        self._refer(operation, described, layer)
        for attribute, name in ((w, "w"), (x, "x"), (y, "y")):
            self._refer(operation, attribute, tensors[name])
        for attribute, factor in ((alpha, 1.0), (beta, 0.0)):
            self._set(operation, attribute, _FLOAT_TYPE, (ctypes.c_float * 1)(factor))
        self._finalize(operation)
        graph = self._create(_GRAPH, created)
        self._refer(graph, 801, operation)
        return self._finalize(graph)

    def _tensor(
        self, name: str, sizes: Sequence[int], alignment: int, of: Convolution, created: list[_Descriptor]
    ) -> _Descriptor:
        tensor = self._create(_TENSOR, created)
        self._integers(tensor, 900, [alignment])
        self._enumerated(tensor, 901, _DTYPE_TYPE, of.dtype)
        self._integers(tensor, 902, sizes)
        self._integers(tensor, 903, _strides(sizes, of.channels_last))
        self._integers(tensor, 906, [ord(name)])
        return self._finalize(tensor)

    def _configs(self, graph: _Descriptor, mode: int, created: list[_Descriptor]) -> Iterator[_Descriptor]:
        """Configurations of engines, in the heuristics' order."""
        heuristics = self._create(_HEURISTICS, created)
        self._refer(heuristics, 201, graph)
        self._enumerated(heuristics, 200, _HEURISTICS_MODE, mode)
        self._refer(heuristics, 204, self._device)
        self._finalize(heuristics)
        configs = [self._create(_CONFIG, created) for _ in range(_MOST_CONFIGS)]
        count = self._get(heuristics, _RESULTS, _DESCRIPTOR_TYPE, (_Descriptor * len(configs))(*configs))
        yield from configs[: len(count)]

    def _passes(self, config: _Descriptor, choice: Choice, dtype: int, created: list[_Descriptor]) -> bool:
        engine = self._create(_ENGINE, created)
        try:
            self._get(config, _ENGINE_OF, _DESCRIPTOR_TYPE, (_Descriptor * 1)(engine))
            notes = self._get(engine, _NOTES, _NOTE_TYPE, (ctypes.c_int * _MOST_NOTES)())
        except CudnnError:
            return False
        if _DOWN_CONVERT in notes or (choice.deterministic and _NONDETERMINISTIC in notes):
            return False
        return choice.tensor_cores or dtype != _FLOAT32 or _TENSOR_CORE not in notes

    def _plan_bytes(self, config: _Descriptor, created: list[_Descriptor]) -> int:
        plan = self._create(_PLAN, created)
        self._refer(plan, _CONFIG_OF_PLAN, config)
        self._refer(plan, _DEVICE_OF_PLAN, self._device)
        self._finalize(plan)
        (size,) = self._get(plan, _WORKSPACE, _INT64_TYPE, (ctypes.c_int64 * 1)())
        return int(size)


_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 9}
_MOST_ALIGNMENT = 32
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
_NOT_MODELLED = "cuDNN's workspace for convolutions"
_NO_CUDNN = (
    "cuDNN's workspace for convolutions is not modelled: there is no cuDNN here that answers without a GPU; "
    "install the CUDA build of PyTorch, or the nvidia-cudnn-cu13 that it requires"
)
_ONE_DIMENSION = "cuDNN's workspace for the backward of one-dimensional convolutions"
_DEPTHWISE = "cuDNN's workspace for the backward of depthwise convolutions in half precision, channels last"
_SEARCH = (
    "torch.backends.cudnn.benchmark tries all of cuDNN's engines: of that search the engines that heuristics "
    "name are counted (others can take gigabytes), and which one later steps use is known on the GPU only"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The arguments that both operators share; one spatial dimension is seen as two."""

    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int

    @classmethod
    def of(cls, arguments: Sequence[Any], dimensions: int) -> _Layer:
        stride, padding, dilation, transposed, _, groups = arguments
        return cls(
            padding=_spatial(padding, 0, dimensions), stride=_spatial(stride, 1, dimensions),
            dilation=_spatial(dilation, 1, dimensions), transposed=transposed, groups=groups,
        )  # fmt: skip


def _spatial(values: Sequence[int], before: int, dimensions: int) -> tuple[int, ...]:
    """``expand_param_if_needed``, and of one dimension ``view1d_as_2d``."""
    if dimensions == 1:
        return (before, *values)
    return tuple(values) * dimensions if len(values) == 1 else tuple(values)


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    sizes = tuple(int(length) for length in tensor.shape)
    return (*sizes[:2], 1, sizes[2]) if len(sizes) == 3 else sizes


def _alignment(tensor: torch.Tensor | None) -> int:
    """``getAlignment``: blocks begin at multiples of 512."""
    offset = 0 if tensor is None else int(tensor.storage_offset()) * tensor.element_size()
    alignment = 1
    while alignment < _MOST_ALIGNMENT and offset % (alignment * 2) == 0:
        alignment *= 2
    return alignment


class Convolutions:
    """What convolutions take of the allocator: their results, copies in cuDNN's layout, and cuDNN's
    workspace.

    In the order of ``aten/src/ATen/native/Convolution.cpp`` and ``native/cudnn/ConvShared.cpp`` (PyTorch
    2.11 to 2.13). The workspace is cuDNN's own answer; where cuDNN
    cannot be asked, the phase is a lower bound.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cudnn: Cudnn | None = None
        self._asked = False
        self._searched: set[Convolution] = set()

    def count(self, name: str, args: tuple[Any, ...], result: Any) -> bool:
        """Count what cuDNN takes for an operator that has run; whether its results were tracked here."""
        if name == "convolution":
            self._forward(args, result)
        elif name == "convolution_backward":
            self._backward(args, result)
        else:
            check(self._machine, name, args)
            return False
        return True

    def _forward(self, args: tuple[Any, ...], result: torch.Tensor) -> None:
        machine = self._machine
        source, weight = args[:2]
        layer = _Layer.of(args[3:9], source.dim() - 2)
        machine.ledger.track(result, "convolution")
        last = _channels_last(source, weight)
        copies = [self._copy(source, last), self._copy(weight, last)]
        operation = INPUT_GRADIENT if layer.transposed else FORWARD
        x, y = (result, source) if layer.transposed else (source, result)
        self._run(operation, x, weight, y, layer, last)
        self._drop(copies)

    def _backward(self, args: tuple[Any, ...], result: Sequence[torch.Tensor | None]) -> None:
        machine = self._machine
        gradient, source, weight = args[:3]
        layer = _Layer.of(args[4:10], source.dim() - 2)
        of_source, of_weight, of_bias = result
        last = _channels_last(source, weight)
        held_copies = [self._copy(source, last), self._copy(gradient, last)]
        if of_source is not None:
            machine.ledger.track(of_source, "convolution_backward")
            copies = [self._copy(weight, last)]
            if layer.transposed:
                self._run(FORWARD, gradient, weight, of_source, layer, last)
            else:
                self._run(INPUT_GRADIENT, of_source, weight, gradient, layer, last)
            self._drop(copies)
        if of_weight is not None:
            machine.ledger.track(of_weight, "convolution_backward")
            x, y = (gradient, source) if layer.transposed else (source, gradient)
            self._run(WEIGHT_GRADIENT, x, of_weight, y, layer, last)
        self._drop(held_copies)
        if of_bias is not None:  # grad_output.sum over all but the channels
            machine.ledger.track(of_bias, "convolution_backward")
            over = [dimension for dimension in range(gradient.dim()) if dimension != 1]
            partial = temporaries.temporary_blocks(gradient, over, 4, machine.gpu)
            machine.ledger.pass_through(partial, "convolution_backward")

    # ---------------------------------------------------------------- parts

    def _copy(self, tensor: torch.Tensor, channels_last: bool) -> Any:
        """``tensor.contiguous(layout)``: a block for as long as the kernel runs, or None."""
        layout = _LAYOUTS[tensor.dim()] if channels_last else torch.contiguous_format
        if tensor.is_contiguous(memory_format=layout):
            return None
        return self._machine.ledger.hold(tensor.numel() * tensor.element_size(), "convolution")

    def _drop(self, copies: Sequence[Any]) -> None:
        for copy in reversed(copies):
            if copy is not None:
                self._machine.ledger.release(copy)

    def _run(
        self, operation: str, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, layer: _Layer,
        channels_last: bool,
    ) -> None:  # fmt: skip
        if not x.numel() or not y.numel() or not weight.numel():
            return
        if not torch.backends.cudnn.enabled or weight.dtype not in _DTYPES:
            return self._not_modelled(f"convolutions of {weight.dtype} without cuDNN")
        if _is_depthwise(x, weight, layer) and not channels_last:
            # a kernel of PyTorch's own; in fp16 a table may choose cuDNN (use_cudnn_depthwise)
            if weight.dtype == torch.float16:
                self._not_modelled("depthwise convolutions in fp16")
            return None
        convolution = Convolution(
            operation=operation, x=_sizes(x), w=_sizes(weight), y=_sizes(y), dtype=_DTYPES[weight.dtype],
            channels_last=channels_last, padding=layer.padding, stride=layer.stride,
            dilation=layer.dilation, alignments=(_alignment(x), _alignment(weight), _alignment(y)),
        )  # fmt: skip
        if operation != FORWARD and not layer.transposed:
            if x.dim() == 3:  # measured peaks are 21 and 23 % above what is counted (measure/data/README.md)
                self._not_modelled(f"{_ONE_DIMENSION} (measured: up to 23 % above what is counted)")
            elif _is_depthwise(x, weight, layer) and weight.dtype in (torch.float16, torch.bfloat16):
                # cuDNN names 33 MB, of which an H200 took 0.2: none is counted
                return self._not_modelled(_DEPTHWISE)
        self._take_workspace(convolution)
        return None

    def _take_workspace(self, convolution: Convolution) -> None:
        machine, settings = self._machine, torch.backends.cudnn
        cudnn = self._library()
        if cudnn is None:
            return
        choice = Choice(
            tensor_cores=settings.allow_tf32,
            deterministic=settings.deterministic or torch.are_deterministic_algorithms_enabled(),
            mode_b=os.environ.get("TORCH_CUDNN_USE_HEURISTIC_MODE_B") == "1",
        )
        try:
            if settings.benchmark:
                machine.not_modelled("cuDNN's choice of the fastest convolution", _SEARCH)
                if convolution not in self._searched:
                    self._searched.add(convolution)
                    size = cudnn.workspace_bytes(convolution, choice, search=True)
                    machine.ledger.pass_through((size,), "cuDNN's search")
                    machine.ledger.empty_cache()
            size = cudnn.workspace_bytes(convolution, choice)
        except CudnnError as error:
            self._not_modelled(f"{_NOT_MODELLED} ({error})")
            return
        machine.ledger.pass_through((size,), "cuDNN workspace")

    def _library(self) -> Cudnn | None:
        if not self._asked:
            self._asked = True
            try:
                self._cudnn = Cudnn(self._machine.gpu)
            except (OSError, AttributeError, CudnnError):
                self._cudnn = None
        if self._cudnn is None:
            self._machine.not_modelled(_NOT_MODELLED, _NO_CUDNN)
        return self._cudnn

    def _not_modelled(self, description: str) -> None:
        self._machine.not_modelled(description, f"not modelled: {description}")


def _channels_last(source: torch.Tensor, weight: torch.Tensor) -> bool:
    """``cudnn_conv_suggest_memory_format``."""
    if source.dim() not in _LAYOUTS or torch.float64 in (source.dtype, weight.dtype):
        return False
    layout = _LAYOUTS[source.dim()]
    return layout in (suggest_memory_format(source), suggest_memory_format(weight))


def _is_depthwise(x: torch.Tensor, weight: torch.Tensor, layer: _Layer) -> bool:
    channels = int(x.shape[1])
    return (
        not layer.transposed
        and layer.groups > 1
        and layer.groups == channels
        and int(weight.shape[0]) % channels == 0
    )


_BATCH_NORM = "cuDNN's workspace for batch norm"
_TEXT = (
    "cuDNN's workspace for batch norm, and what it reserves for backward, is not modelled: the phases with "
    "it are lower bounds (torch.backends.cudnn.enabled = False or bf16 weights avoid cuDNN)"
)
_MOST_IMAGES = 880_801
_MOST_ELEMENTS = 2**31 - 1

_OPERATORS = {  # where input and weight stand among the arguments
    "native_batch_norm": (0, 1),
    "_native_batch_norm_legit": (0, 1),
    "cudnn_batch_norm": (0, 1),
    "native_batch_norm_backward": (1, 2),
}


def check(machine: Machine, name: str, args: Sequence[Any]) -> None:
    """Mark the phase as a lower bound if a GPU would run this operator with cuDNN.

    A CPU build of PyTorch dispatches to its own kernels, a CUDA build to ``cudnn_batch_norm``. Evaluation
    takes no workspace (``native/cudnn/BatchNorm.cpp``).
    """
    if name in _OPERATORS:
        source, weight = (args[index] for index in _OPERATORS[name])
        training = next(value for value in args if isinstance(value, bool))
        marked = training and _is_cudnn(source, weight)
    else:
        marked = name == "cudnn_batch_norm_backward"
    if marked:
        machine.not_modelled(_BATCH_NORM, _TEXT)


def _is_cudnn(source: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """``_select_batch_norm_backend`` while training (``native/Normalization.cpp``); any epsilon will do."""
    return (
        torch.backends.cudnn.enabled
        and weight is not None
        and torch.bfloat16 not in (source.dtype, weight.dtype)
        and (source.dtype != torch.float16 or weight.dtype == torch.float32)
        and source.dim() >= 3
        and source.shape[0] <= _MOST_IMAGES
        and source.numel() < _MOST_ELEMENTS
    )
