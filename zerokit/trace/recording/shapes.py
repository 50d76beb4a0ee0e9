"""What operators make of fake tensors, remembered.

FakeTensorMode remembers, too, but to look an answer up and to make a tensor of it takes it some 0.2 ms, ten
times what it takes here: it reads each argument by more general ways. An answer is kept where it follows from
the operator and its arguments alone: all tensors are dense, and each one of the result has memory of its own,
or views or is one of the arguments.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

_WRAPPERS = frozenset({"DTensor", "AsyncCollectiveTensor"})
_META = torch.device("meta")
_make_subclass = torch.Tensor._make_subclass
_refuse_address = torch._C._set_throw_on_mutable_data_ptr
_BY_VALUES = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
_aten = torch.ops.aten
_device = torch.ops.prim.device.default
_BY_OFFSET = (_aten.as_strided.default, _aten.as_strided_.default, _aten.view.dtype)
"""Where an argument lies in its memory decides more than where the result does."""
_MOST_ANSWERS = 1 << 16
"""Kept at once: rows of every length have no end of them."""


class _NotKept(Exception):
    """The answer follows from more than the key holds."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of a result.

    Attributes:
        same: which of the operator's tensors it is; None: a new one.
        viewed: which of them it shares its memory with; None: it has its own.
        offset: from the beginning of what it views, in elements.
        state: what FakeTensor keeps of a new one; None: it is no tensor, but ``value``.
    """

    same: int | None = None
    viewed: int | None = None
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    state: dict[str, Any] | None = None
    value: float | None = None

    def make(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The tensor; ``tensors``: the operator's."""
        if self.same is not None:
            return tensors[self.same]
        if self.state is None:
            return self.value
        if self.viewed is None:
            memory = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)
        else:
            viewed = tensors[self.viewed]
            memory = torch.empty_strided((0,), (1,), dtype=self.dtype, device=_META)
            offset = viewed.storage_offset() + self.offset
            memory.set_(viewed.untyped_storage(), offset, self.shape, self.stride)
        made: Any = _make_subclass(
            FakeTensor, memory, False, dispatch_device=True, device_for_backend_keys=self.device
        )
        _refuse_address(made)
        made.__dict__.update(self.state)
        return made


class Shapes:
    """The results of operators on one machine's fake tensors; ``fake``: answers what was not asked before."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._answers: dict[Any, tuple[type | None, tuple[_Part, ...], Any]] = {}
        self._states: dict[torch.device, dict[str, Any] | None] = {}
        self._learned = 0

    def dispatch(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operator's result, as ``FakeTensorMode.dispatch`` gives it."""
        if func is _device and not self._fake.in_kernel_invocation:
            return args[0].fake_device
        kwargs = kwargs or {}
        if func is _aten.slice.Tensor and not kwargs and (part := self._slice(*args)) is not None:
            return part.make(args)
        tensors: list[torch.Tensor] = []
        try:
            key = self._key(func, args, kwargs, tensors)
            answer = self._answers.get(key)
        except (_NotKept, TypeError):  # the latter: of an argument without a hash
            return self._fake.dispatch(func, types, args, kwargs)
        if answer is None:
            result = self._fake.dispatch(func, types, args, kwargs)
            self._keep(key, func, args, kwargs, result)
            return result
        several, parts, _ = answer
        made = [part.make(tensors) for part in parts]
        return several(made) if several is not None else made[0]

    def news(self) -> bytes:
        """The answers since :meth:`learn`, for another process that was forked from the same one."""
        packed = []
        for key, (several, parts, func) in list(self._answers.items())[self._learned :]:
            with contextlib.suppress(pickle.PicklingError):  # a value that stays here
                file = io.BytesIO()
                _Packer(file, self._fake).dump((str(func), key[1:], several, parts))
                packed.append(file.getvalue())
        return pickle.dumps(packed)

    def learn(self, news: bytes) -> None:
        """Take another process's answers. It is not trusted: no function is called to read them."""
        with contextlib.suppress(Exception):
            for packed in _Unpacker(io.BytesIO(news), self._fake).load():
                name, key, several, parts = _Unpacker(io.BytesIO(packed), self._fake).load()
                _, packet, overload = name.split(".")
                func = getattr(getattr(_aten, packet), overload)
                asked = (id(func), *key)
                self._answers[asked] = several, parts, func
                for part in parts:
                    if part.state is not None:
                        self._states.setdefault(part.device, part.state)
        self._learned = len(self._answers)

    def forget(self) -> None:
        """Know nothing of what was asked before."""
        self._answers.clear()
        self._learned = 0

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> tuple[Any, ...]:
        key = [id(func), torch.is_inference_mode_enabled(), torch.get_default_dtype()]
        self._read(args, key, tensors)
        for name, value in kwargs.items():
            key.append(name)
            self._read((value,), key, tensors)
        if any(func is one for one in _BY_OFFSET):
            key += [tensor.storage_offset() for tensor in tensors]
        return tuple(key)

    def _slice(
        self, tensor: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> _Part | None:
        """A part of a flat buffer, which has thousands; None: of anything else."""
        if not isinstance(tensor, FakeTensor) or tensor.dim() != 1 or tensor.layout is not torch.strided:
            return None
        state = self._states.get(tensor.fake_device)
        if state is None or tensor.fake_mode is not self._fake or tensor.constant is not None:
            return None
        first, last, step = slice(start, end, step).indices(tensor.shape[0])
        (stride,) = tensor.stride()
        return _Part(
            viewed=0, shape=(len(range(first, last, step)),), stride=(stride * step,),
            offset=first * stride, dtype=tensor.dtype, device=tensor.fake_device, state=state,
        )  # fmt: skip

    def _read(self, values: Any, key: list[Any], tensors: list[torch.Tensor]) -> None:
        for value in values:
            if isinstance(value, FakeTensor):
                is_own = value.fake_mode is self._fake and value.constant is None
                if value.layout is not torch.strided or not is_own:
                    raise _NotKept
                tensors.append(value)
                key += (value.shape, value.stride(), value.dtype, value.fake_device)
            elif isinstance(value, torch.Tensor):
                raise _NotKept
            elif isinstance(value, list | tuple):
                key.append(len(value))
                self._read(value, key, tensors)
            elif not isinstance(value, torch.Generator):
                key += (value.__class__, value)  # 1 and 1.0 are equal
                if value.__class__ is torch.device and value.index is None and value.type == "cuda":
                    key.append(torch.cuda.current_device())

    def _keep(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        several = type(result) if isinstance(result, list | tuple) else None
        if several not in (None, list, tuple) or func.namespace != "aten" or _BY_VALUES & {*func.tags}:
            return
        tensors: list[torch.Tensor] = []
        try:
            if self._key(func, args, kwargs, tensors) != key:
                return  # it changes how an argument sees its memory
            storages = [tensor.untyped_storage()._cdata for tensor in tensors]
            parts = [self._part(one, tensors, storages) for one in ([result] if several is None else result)]
        except _NotKept:
            return
        if len(self._answers) >= _MOST_ANSWERS:
            self.forget()
        self._answers[key] = several, tuple(parts), func  # which keeps its identity

    def _part(self, one: Any, tensors: list[torch.Tensor], storages: list[int]) -> _Part:
        """What is kept of a tensor. ``storages``: the arguments', to which a new one's is added. Raises
        _NotKept: it is another object, or has what a new one would not have."""
        if one is None or type(one) in (bool, int, float):
            return _Part(value=one)
        same = next((number for number, tensor in enumerate(tensors) if tensor is one), None)
        if same is not None:
            return _Part(same=same)
        if type(one) is not FakeTensor:
            raise _NotKept
        storage = one.untyped_storage()
        viewed = storages.index(storage._cdata) if storage._cdata in storages else None
        if viewed is not None and viewed >= len(tensors):
            raise _NotKept  # it shares its memory with another of the result
        part = _Part(
            viewed=viewed,
            shape=tuple(one.shape),
            stride=one.stride(),
            offset=one.storage_offset() - (tensors[viewed].storage_offset() if viewed is not None else 0),
            dtype=one.dtype,
            device=one.fake_device,
            state=dict(one.__dict__),
        )
        made = part.make(tensors)
        if (
            made.untyped_storage().nbytes() != storage.nbytes()
            or any(getattr(made, name)() != getattr(one, name)() for name in _ALIKE)
            or any(getattr(made, name) != getattr(one, name) for name in _EQUAL)
        ):
            raise _NotKept
        storages.append(storage._cdata)
        self._states.setdefault(one.fake_device, part.state)
        return part


_TYPES = (bool, int, float, str, list, tuple, type(None), torch.Size, torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip
_NAMED: dict[str, Any] = {f"type {one.__name__}": one for one in _TYPES}
_NAMED |= {
    name: one for name, one in vars(torch).items()
    if isinstance(one, torch.dtype | torch.layout | torch.memory_format)
}  # fmt: skip
_NAMES = {id(one): name for name, one in _NAMED.items()}
_FAKE = "the mode"
_MADE = (torch.Size, torch.device, _Part)
"""Whose objects are written, beside plain values."""


class _Packer(pickle.Pickler):
    """Writes numbers, texts, sizes, devices, and names of what every process has."""

    def __init__(self, file: io.BytesIO, fake: FakeTensorMode) -> None:
        super().__init__(file)
        self._fake = fake

    def persistent_id(self, value: Any) -> str | None:
        return _FAKE if value is self._fake else _NAMES.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if type(value) in _MADE or value is _Part:
            return NotImplemented
        raise pickle.PicklingError(f"{type(value)} stays here")


class _Unpacker(pickle.Unpickler):
    """Reads what :class:`_Packer` writes."""

    def __init__(self, file: io.BytesIO, fake: FakeTensorMode) -> None:
        super().__init__(file)
        self._fake = fake

    def persistent_load(self, name: Any) -> Any:
        return self._fake if name == _FAKE else _NAMED[name]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_Part.__module__, _Part.__name__):
            return _Part
        raise pickle.UnpicklingError(f"{module}.{name} is not read")


_ALIKE = ("is_conj", "is_neg", "stride", "storage_offset")
_EQUAL = ("shape", "dtype", "layout", "requires_grad", "constant", "real_tensor")


class Remembering(TorchDispatchMode):
    """A FakeTensorMode whose answers are remembered; that one itself is never on the stack of modes."""

    def __init__(self) -> None:
        super().__init__()
        self._shapes = Shapes(FakeTensorMode(allow_non_fake_inputs=True))

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, func, types, args=(), kwargs=None
    ):
        if is_elsewhere(types):
            return NotImplemented
        if fake_mode() is not None:  # DTensor asks for the shape of a whole result: nothing is allocated
            return func(*args, **kwargs or {})
        return self._shapes.dispatch(func, types, args, kwargs)


def is_elsewhere(types: Sequence[type]) -> bool:
    """Whether an operator is for tensors that hand their own to it (DTensor), which come here in turn."""
    return any(one.__name__ in _WRAPPERS for one in types)


def fake_mode() -> FakeTensorMode | None:
    """The one that answers operators now, if any is on the stack."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
