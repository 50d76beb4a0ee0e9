"""What convolutions take of the allocator: their results, copies in cuDNN's layout, and cuDNN's workspace.

In the order of ``aten/src/ATen/native/Convolution.cpp`` and ``native/cudnn/ConvShared.cpp`` (PyTorch 2.11 to
2.13). The workspace is cuDNN's own answer (:mod:`zerokit.rehearsal.process.cudnn`); where cuDNN cannot be
asked, the phase is a lower bound.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from zerokit.rehearsal.process import reductions
from zerokit.rehearsal.process.cudnn import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Choice,
    Convolution,
    Cudnn,
    CudnnError,
)
from zerokit.rehearsal.process.machine import Machine

OPERATORS = frozenset({"convolution", "convolution_backward"})
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
    """Those of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cudnn: Cudnn | None = None
        self._asked = False
        self._searched: set[Convolution] = set()

    def count(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """A convolution, or its backward, has run: its results are new tensors, tracked here."""
        if name == "convolution":
            self._forward(args, result)
        else:
            self._backward(args, result)

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
            partial = reductions.temporary_blocks(gradient, over, 4, machine.gpu)
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
        self,
        operation: str,
        x: torch.Tensor,
        weight: torch.Tensor,
        y: torch.Tensor,
        layer: _Layer,
        channels_last: bool,
    ) -> None:
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
                    machine.ledger.pass_through((cudnn.search_bytes(convolution, choice),), "cuDNN's search")
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
