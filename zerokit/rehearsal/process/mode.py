"""The dispatch mode: what every operator does on the fake machine.

On top of the stack, always on, in every thread. Operators without a tensor on the GPU run for real (data,
tokenizers, samplers). All others run on fake tensors; the ledger takes each new storage, and where the
values of all inputs are known the operator runs on their twins too.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zerokit.rehearsal.process import answers, collectives, factories, in_place_adds, operators, twins
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.operators import Known
from zerokit.rehearsal.process.twins import twin

if TYPE_CHECKING:
    from zerokit.rehearsal.process.kernels.cudnn import Convolutions

aten = torch.ops.aten
_device = torch.ops.prim.device.default

LARGE_HOST_BYTES = 1 << 26
"""Host tensors from this size on are fake too: a model's weights cost nothing."""


def scan(value: Any, fakes: list[Any], reals: list[Any]) -> None:
    """Collect the tensors among arguments. No closure: a recursive one is a cycle that keeps them alive."""
    if isinstance(value, torch.Tensor):
        (fakes if isinstance(value, FakeTensor) else reals).append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            scan(item, fakes, reals)
    elif isinstance(value, dict):
        for item in value.values():
            scan(item, fakes, reals)


class ThreadSettings(threading.local):
    """What PyTorch keeps for each thread, and autograd's own threads begin without."""

    def __init__(self) -> None:  # at a thread's first use of this object
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") reaches the mode

    def take(self) -> None:
        """Give them to this thread, unless it has them."""


class Call(NamedTuple):
    """An operator with its arguments, and the tensors among these."""

    known: Known
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fakes: list[Any]
    reals: list[Any]


class FakeCuda(TorchDispatchMode):
    """The mode of one machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self.thread_settings = ThreadSettings()
        self._plain_types: set[type] = {torch.Tensor, torch.nn.Parameter, FakeTensor}
        self.cuda_kernels: dict[str, Any] = {
            f"aten::{name}": row.runs_as
            for name, row in operators.OPERATORS.items()
            if row.runs_as is not None
        }
        """Operators whose CUDA kernel is written in Python (``torch.library.register_kernel``): it runs
        with fake tensors, so that its temporaries count."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer one operator."""
        if func is _device and type(args[0]) is FakeTensor and not self._machine.fake.in_kernel_invocation:
            return args[0].fake_device  # most of all calls
        if _compiles_frames() is not None:
            return _without_dynamo(self, func, types, args, kwargs)
        self.thread_settings.take()
        if types and self._has_own_dispatch(types):
            return NotImplemented  # DTensor and its like unwrap themselves first
        inner = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        kwargs = kwargs or {}
        if inner is not None and inner is not self._machine.fake:
            return func(*args, **kwargs)  # shapes asked under another FakeTensorMode (DTensor): no memory
        observers = self._machine.observers
        for observer in observers:
            observer.enter()
        try:
            with self._machine.lock:
                return self._answer(func, types, args, kwargs)
        finally:
            for observer in observers:
                observer.leave()

    def _has_own_dispatch(self, types: tuple[type, ...]) -> bool:
        for tensor_type in types:
            if tensor_type in self._plain_types:
                continue
            dispatch = tensor_type.__torch_dispatch__  # type: ignore[attr-defined]
            if issubclass(tensor_type, FakeTensor) or dispatch is torch._C._disabled_torch_dispatch_impl:
                self._plain_types.add(tensor_type)
                continue
            return True
        return False

    def _answer(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace == "c10d":
            return self._observed(func, args, kwargs, collectives.answer(self._machine, func, args))
        if func.namespace == "_c10d_functional":
            collectives.of_group(self._machine, args)
        fakes: list[Any] = []
        reals: list[Any] = []
        scan(args, fakes, reals)
        if kwargs:
            scan(kwargs, fakes, reals)
        device = kwargs.get("device")
        if device is None and not fakes:
            device = next((value for value in args if isinstance(value, torch.device)), None)
        makes_cuda = device is not None and device.type == "cuda"
        func = in_place_adds.derivative(func)
        known = operators.facts(func)
        if not fakes and not makes_cuda:
            result = self._on_host(known, types, args, kwargs, reals)
            for observer in self._machine.observers:
                observer.host_operator(func, args, kwargs, result)
            return result
        kernel = self._python_kernel(known, args, fakes)
        if kernel is not None:
            with self:
                return kernel(*args, **kwargs)
        if func is aten.add.Tensor and len(fakes) == 2:
            result = in_place_adds.answer(self._machine, types, args, kwargs)
            if result is not None:
                return self._observed(func, args, kwargs, result)
        if known.row.answer is not None:
            result = known.row.answer(self._machine, func, args, kwargs)
            if result is not answers.PASS:
                self._track(result, known.name, args)
                return self._observed(func, args, kwargs, result)
        if known.comes_apart:
            with self:
                return func.decompose(*args, **kwargs)
        if reals and fakes and known.writes_first and any(args[0] is real for real in reals):
            return args[0]  # unknown values written into a real host tensor
        call = Call(known, args, kwargs, fakes, reals)
        result = self._run(call, types)
        self._keep_values(call, result, makes_cuda)
        return self._observed(func, args, kwargs, result)

    def _python_kernel(self, known: Known, args: tuple[Any, ...], fakes: list[Any]) -> Any:
        """What Python runs in an operator's place, in this mode; None: nothing."""
        name = known.full_name
        if known.is_sparse and (name != "aten::_to_copy" or args[0].layout is torch.sparse_coo):
            return self._sparse_kernels[name]
        kernel = self.cuda_kernels.get(name)
        on_gpu = kernel is not None and any(value.fake_device.type == "cuda" for value in fakes)
        return kernel if on_gpu else None

    @functools.cached_property
    def _convolutions(self) -> Convolutions:
        """cuDNN's part, from the first operator on that may run in it."""
        from zerokit.rehearsal.process.kernels.cudnn import Convolutions

        return Convolutions(self._machine)

    @functools.cached_property
    def _sparse_kernels(self) -> dict[str, Any]:
        """What makes sparse tensors, from the first one on."""
        from zerokit.rehearsal.process.kernels import sparse

        return sparse.kernels(self._machine)

    def _observed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        for observer in self._machine.observers:
            observer.operator(func, args, kwargs, result)
        return result

    # ---------------------------------------------------------------- host

    def _on_host(
        self, known: Known, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reals: list[Any]
    ) -> Any:
        machine, func = self._machine, known.func
        if func is aten.is_pinned.default:
            return machine.is_pinned(args[0])
        if func is aten._pin_memory.default:
            return machine.pin(args[0].clone())
        if kwargs.get("pin_memory"):
            return machine.pin(self._answer(func, types, args, {**kwargs, "pin_memory": False}))
        device = kwargs.get("device")
        if not reals and (device is None or device.type == "cpu") and _is_large(known, args, kwargs):
            return machine.track_host(machine.shapes.dispatch(func, types, args, kwargs))
        return func(*args, **kwargs)

    # ---------------------------------------------------------------- GPU

    def _shaped(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By FakeTensor's rules; raises RuntimeError as the operators do, which scripts catch."""
        try:
            return self._machine.shapes.dispatch(func, types, args, kwargs)
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        except UnsupportedOperatorException:
            if "out" not in kwargs:
                raise  # compiled code calls aten::_scaled_mm.out
            return kwargs["out"]

    def _run(self, call: Call, types: Any) -> Any:
        known, args, kwargs, fakes, _ = call
        machine, on_gpu = self._machine, bool(fakes) and fakes[0].fake_device.type == "cuda"
        name, rule = known.name, known.rule
        if on_gpu and known.row.fp8:
            operators.refuse_fp8(machine.gpu.capability)
        if rule is not None:
            result = rule(machine, args, kwargs)
        else:
            result = self._shaped(known.func, types, args, kwargs)
        if on_gpu and known.row.cudnn and self._convolutions.count(name, args, result):
            pass
        elif on_gpu and known.takes_blocks:
            with machine.ledger.holding(operators.first(name, args), name):
                self._track(result, name, args)
            for blocks in operators.afterwards(name, args, machine.gpu):
                machine.ledger.pass_through(blocks, name)
        else:
            self._track(result, name, args)
        if known.row.cublas:
            output = next((leaf for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)), None)
            if output is not None and output.fake_device.type == "cuda":
                machine.workspaces.product(name, args, kwargs)
                machine.product(name, output)
        return result

    def _track(self, result: Any, name: str, args: tuple[Any, ...]) -> None:
        for leaf in operators.in_order_of_allocation(name, args, result):
            if isinstance(leaf, FakeTensor):
                kind = leaf.fake_device.type
                if kind == "cuda":
                    self._machine.ledger.track(leaf, name)
                elif kind == "cpu":
                    self._machine.track_host(leaf)

    # ---------------------------------------------------------------- values

    def _keep_values(self, call: Call, result: Any, makes_cuda: bool) -> None:
        known, args, kwargs, fakes, reals = call
        func, name = known.func, known.name
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)]
        has_values = not fakes or any(twins.twin_of(leaf) is not None for leaf in fakes)
        if not has_values and not known.row.drawn:
            origin = answers.origin_of(fakes[0]) if known.is_view else name
            answers.note_origin(outputs, origin)
            return
        # what is written into a view is in what it views
        values_of = twins.place if known.is_view else twin
        are_known = all(values_of(leaf) is not None for leaf in fakes) and all(
            r.device.type == "cpu" for r in reals
        )
        small = all(twins.may_have(leaf) for leaf in fakes)
        if known.is_mutable:
            if known.row.overwrites and self._overwritten(name, args):
                return
            if not (are_known and small and not name.startswith("_fused") and _succeeds(func, args, kwargs)):
                twins.forget_written(func, args, kwargs)
            answers.note_origin(outputs, name)
        elif not outputs:
            return
        elif (
            are_known
            and (fakes or reals or known.row.factory or makes_cuda)
            and (
                (small and all(twins.may_have(leaf) for leaf in outputs))
                or (known.cheap and twins.are_data(fakes + reals, outputs))
            )
            and not known.is_random
        ):
            self._compute(call, outputs, values_of)
        elif known.row.drawn:
            answers.draw(self._machine, name, fakes[0], outputs[-1])
        else:
            origin = answers.origin_of(fakes[0]) if fakes and known.is_view else name
            answers.note_origin(outputs, origin)

    @staticmethod
    def _overwritten(name: str, args: tuple[Any, ...]) -> bool:
        """Whether all of the first argument holds known values now."""
        target = args[0]
        if not isinstance(target, FakeTensor) or twin(target) is not None:
            return False
        source = args[1] if len(args) > 1 else 0
        if isinstance(source, torch.Tensor):
            values = twin(source) if isinstance(source, FakeTensor) else source
            return twins.overwritten(target, values)
        return twins.overwritten(target, factories.full((), source, dtype=target.dtype))

    def _compute(
        self, call: Call, outputs: list[Any], values_of: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> None:
        known, args, kwargs, fakes, reals = call
        if known.row.empty:
            for fake_output in outputs:  # a place for values, none of them known until they are written
                twins.attach(
                    fake_output,
                    factories.zeros(fake_output.shape, dtype=fake_output.dtype),
                    twins.Validity(is_known=False, unwritten=True),
                )
            return
        try:
            computed = twins.run_on_twins(known.func, args, kwargs, values_of)
        except Exception:  # an operator without a CPU kernel for this dtype: the values are unknown
            return
        values = [leaf for leaf in tree_leaves(computed) if isinstance(leaf, torch.Tensor)]
        if known.name == "_to_copy" and reals and not fakes:  # the twin must not share the script's memory
            values = [leaf.clone() if any(leaf is real for real in reals) else leaf for leaf in values]
        source = twins.twin_of(fakes[0]) if fakes and known.is_view else None
        for output, value in zip(outputs, values, strict=False):
            if value.shape == output.shape:
                twins.attach(output, value, source.validity if source is not None else None)
                if known.row.filled:
                    twins.fill(output)


_without_dynamo = FakeCuda.__torch_dispatch__  # as PyTorch wraps it, which costs as much as some answers
FakeCuda.__torch_dispatch__ = _without_dynamo.__wrapped__  # type: ignore[attr-defined, method-assign]
_compiles_frames = torch._C._dynamo.eval_frame.get_eval_frame_callback


def _succeeds(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        twins.run_on_twins(func, args, kwargs)
    except Exception:
        return False
    return True


def _is_large(known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not known.row.large_on_host or not args:
        return False
    shape = args[0]
    if not isinstance(shape, list | tuple):
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return int(math.prod(shape)) * int(dtype.itemsize) >= LARGE_HOST_BYTES
