"""Fake tensors as citizens of scripts: ``.data``, addresses, copies to NumPy, deep copies, pinned memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils

from zerokit.rehearsal.process import answers, factories, twins
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.mode import FakeCuda
from zerokit.rehearsal.process.sdpa_choice import attention
from zerokit.rehearsal.process.twins import twin

LARGEST_HOST_COPY_BYTES = 1 << 24
"""Unknown values up to here are made for real when a script takes them to the host."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

COMPOSITE_ON_CUDA = ("silu_backward", "mish_backward")
"""Operators with a CUDA kernel and a composite form too (``native_functions.yaml``: CompositeImplicit beside
CUDA). A CPU build has no CUDA kernel, so they would come apart before the mode sees them."""


class HollowArray(np.ndarray):
    """Host values of a large tensor that nobody knows: zeros that take no memory until they are written. Its
    bytes are told apart by shape and dtype alone, so that fingerprints of weights are cheap."""

    def tobytes(self, order: Any = "C") -> bytes:
        """A fingerprint, not the values."""
        return f"{self.shape}{self.dtype}".encode()


def install(machine: Machine, mode: FakeCuda) -> None:
    """Replace the methods; from here on the mode is active in every thread."""
    _patch_data(machine)
    _patch_construction()
    _patch_host_copies(machine)
    _patch_pinning(machine)
    _patch_storages(machine)
    _patch_parameters(machine)
    _patch_subclasses()
    for kinds in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        kinds.append(FakeTensor)  # a list by type: real tensors would go through the foreach kernels
    torch.nn.functional.scaled_dot_product_attention = fused = attention(machine)
    torch.jit._builtins._register_builtin(fused, "aten::scaled_dot_product_attention")
    _keep_composites_whole()
    _collect_python_kernels(mode)
    mode.thread_settings.take()
    mode.__enter__()
    _enter_in_threads(mode)


def lift(machine: Machine, tensor: torch.Tensor) -> torch.Tensor:
    """A fake host tensor like a real one; integers keep their values."""
    with torch.no_grad(), machine.fake:
        fake = factories.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if twins.may_have(tensor) and not tensor.dtype.is_floating_point:
        twins.attach(fake, tensor.detach().clone())
    return machine.track_host(fake)


def _patch_data(machine: Machine) -> None:
    base = torch._C.TensorBase.data

    def set_of_fake(self: Any, new: Any) -> None:
        if not isinstance(new, FakeTensor):
            new = lift(machine, new)
        base.__set__(self, new)
        self.fake_device = new.fake_device
        twins.take_over(self, new)

    def set_of_real(self: Any, new: Any) -> None:
        """FSDP2 moves its buffers by ``t.data = t.to("cuda")``: C++ swaps the memory, the class follows."""
        base.__set__(self, new)
        if isinstance(new, FakeTensor) and not isinstance(self, FakeTensor) and type(self) in _PLAIN:
            was_parameter, was_buffer = (
                isinstance(self, kind) for kind in (torch.nn.Parameter, torch.nn.Buffer)
            )
            self.__class__ = FakeTensor
            self.__dict__.update(new.__dict__)
            if was_parameter:
                self._is_param = True
            if was_buffer:
                self._is_buffer = True

    FakeTensor.data = property(lambda self: base.__get__(self), set_of_fake)
    torch.Tensor.data = property(lambda self: base.__get__(self), set_of_real)


def _patch_construction() -> None:
    """``type(weight)(data, requires_grad=…)``, by which Accelerate moves offloaded weights: a Parameter."""
    create = FakeTensor.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and "fake_mode" not in kwargs:
            return torch.nn.Parameter(args[0], kwargs.get("requires_grad", True))
        return create(cls, *args, **kwargs)

    FakeTensor.__new__ = staticmethod(new)


def _patch_host_copies(machine: Machine) -> None:
    def numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _host_array(machine, self)

    FakeTensor.tolist = lambda self: _host_array(machine, self).tolist()
    FakeTensor.numpy = numpy
    FakeTensor.__format__ = _format
    FakeTensor.__array__ = numpy
    FakeTensor.__deepcopy__ = _deepcopy
    FakeTensor.__reduce_ex__ = lambda self, protocol: (factories.empty, (0,))
    real_tensor = torch.tensor

    def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        values = _plain_values(data)
        if device is None or torch.device(device).type == "cpu":
            return real_tensor(values, *args, device=device, **kwargs)
        # inside of a custom function's backward the constructor itself would go past the mode
        requires_grad = kwargs.pop("requires_grad", False)
        created = real_tensor(values, *args, **kwargs).to(device)
        return created.requires_grad_() if requires_grad else created

    torch.tensor = tensor
    torch.jit._builtins._register_builtin(tensor, "aten::tensor")  # scripted functions call PyTorch's


def _format(self: Any, spec: str) -> str:
    """``f"{loss:.3f}"``: PyTorch formats the value of plain tensors without dimensions only."""
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _host_array(machine: Machine, tensor: torch.Tensor) -> Any:
    values = twin(tensor)
    if values is not None:
        return values.numpy()
    if tensor.numel() * tensor.element_size() <= LARGEST_HOST_COPY_BYTES:
        return answers.on_host(machine, tensor, "values").numpy()
    machine.guesses.of_value("values of a large tensor", 0)
    dtype = factories.empty(0, dtype=tensor.dtype).numpy().dtype
    return np.zeros(tuple(tensor.shape), dtype=dtype).view(HollowArray)


def _plain_values(value: Any) -> Any:
    """Numbers in place of fake tensors inside of lists: ``torch.tensor([loss, other])``."""
    if isinstance(value, FakeTensor):
        return value.tolist()
    if isinstance(value, list | tuple) and any(isinstance(item, list | tuple | FakeTensor) for item in value):
        return [
            _plain_values(item) if isinstance(item, list | tuple | FakeTensor) else item for item in value
        ]
    return value


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():
        copy = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        copy = torch.nn.Parameter(copy, self.requires_grad)
    elif self.requires_grad:
        copy.requires_grad_()
    memo[id(self)] = copy
    return copy


def _patch_pinning(machine: Machine) -> None:
    def record_stream(self: Any, stream: Any) -> None:
        if self.device.type == "cuda":
            machine.ledger.used_by(self.untyped_storage(), stream.number)

    torch.Tensor.pin_memory = lambda self, *_, **__: machine.pin(self) if self.device.type == "cpu" else self
    torch.Tensor.is_pinned = lambda self, *_, **__: self.device.type == "cpu" and machine.is_pinned(self)
    torch.Tensor.record_stream = record_stream


def _patch_storages(machine: Machine) -> None:
    real_address = torch.UntypedStorage.data_ptr
    real_resize = torch.UntypedStorage.resize_

    def address(self: Any) -> int:
        return machine.address(self) if self.device.type == "meta" else real_address(self)

    def tensor_address(self: Any) -> int:
        if not self.numel():
            return 0
        offset: int = self.storage_offset() * self.element_size()
        return machine.address(self.untyped_storage()) + offset

    def resize_(self: Any, size: int) -> Any:
        result = real_resize(self, size)
        machine.ledger.resized(self, size)
        machine.forget_address(self)
        return result

    FakeTensor.data_ptr = tensor_address
    torch.UntypedStorage.data_ptr = address
    torch.UntypedStorage.resize_ = resize_


def _patch_parameters(machine: Machine) -> None:
    real_new = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        """Weights are fake on the host too."""
        is_real = cls is torch.nn.Parameter and data is not None and type(data) is torch.Tensor
        if is_real and data.device.type == "cpu":
            data = lift(machine, data)
        return real_new(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = new
    torch.nn.Module._apply = _apply


def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
    """``nn.Module._apply``: parameters keep their identity where C++ can swap their memory, else are new."""
    if recurse:
        for child in self.children():
            child._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                applied = fn(parameter)
            both_fake = isinstance(parameter, FakeTensor) and isinstance(applied, FakeTensor)
            if both_fake and torch._has_compatible_shallow_copy_type(parameter, applied):
                parameter.data = applied
            elif applied is not parameter:
                self._parameters[name] = torch.nn.Parameter(applied, parameter.requires_grad)
            if parameter.grad is not None:
                with torch.no_grad():
                    gradient = fn(parameter.grad)
                parameter.grad = None
                self._parameters[name].grad = gradient
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _patch_subclasses() -> None:
    """``_make_subclass`` of a fake tensor (bitsandbytes' Params4bit): a class that is both."""
    real_make = torch.Tensor._make_subclass
    both: dict[type, type] = {}

    def make(cls: Any, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return real_make(cls, data, require_grad, **kwargs)
        if cls not in both:
            body = {"__torch_dispatch__": FakeTensor.__torch_dispatch__, "__module__": cls.__module__}
            both[cls] = (
                cls if issubclass(cls, FakeTensor) else type(cls)(cls.__name__, (cls, FakeTensor), body)
            )
        with torch.no_grad():
            tensor = data.detach()
        tensor.__class__ = both[cls]
        if issubclass(cls, torch.nn.Parameter):
            tensor._is_param = True
        if require_grad:
            tensor.requires_grad_(True)
        return tensor

    torch.Tensor._make_subclass = staticmethod(make)


_library = torch.library.Library("aten", "IMPL")


def _keep_composites_whole() -> None:
    """Any kernel for CUDA keeps an operator whole; the mode never lets it run."""

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an operator on the fake GPU passed the dispatch mode")

    for name in COMPOSITE_ON_CUDA:
        operator = getattr(torch.ops.aten, name).default
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CUDA"):
            _library.impl(name, unreachable, "CUDA")


def _collect_python_kernels(mode: FakeCuda) -> None:
    real_register = torch.library.register_kernel

    def register(op: Any, device_types: Any, func: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        kinds = [device_types] if isinstance(device_types, str | type(None)) else list(device_types)

        def take(kernel: Any) -> None:
            name = str(op) if isinstance(op, str) else op._name
            if kinds == [None] or "cuda" in kinds:
                mode.cuda_kernels[name] = kernel
            elif "default" in kinds:  # what CUDA tensors get too, unless there is one for them
                mode.cuda_kernels.setdefault(name, kernel)

        if func is not None:
            take(func)
            return real_register(op, device_types, func, *args, **kwargs)
        decorate = real_register(op, device_types, *args, **kwargs)

        def decorated(kernel: Any) -> Any:
            take(kernel)
            return decorate(kernel)

        return decorated

    torch.library.register_kernel = register


def _enter_in_threads(mode: FakeCuda) -> None:
    """Modes belong to a thread: a new one enters ours too."""
    run = threading.Thread.run

    def run_in_mode(self: threading.Thread) -> None:
        mode.thread_settings.take()
        with mode:
            run(self)

    threading.Thread.run = run_in_mode  # type: ignore[method-assign]
