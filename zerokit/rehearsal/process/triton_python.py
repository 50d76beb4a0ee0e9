"""What ``triton`` offers on the host, beside its kernels: functions to decorate, configurations, sizes.

Of Triton 3.9.0. What runs on the GPU alone, ``triton.language``, may be named and is never asked for a value;
kernels' launches are recorded by :mod:`zerokit.rehearsal.process.adapters.kernels`. The stand-in holds a copy
of this file: the host's calls are counted there as in Triton's, so they are as many.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class KernelInterface:
    """What a grid is given to: ``run`` is the adapter's (runtime/jit.py:360)."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)  # type: ignore[attr-defined] # noqa: B026


class JITFunction(KernelInterface):
    """A function that would be compiled at its launch (runtime/jit.py:793)."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn, self.signature = fn, inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.__name__, self.__qualname__, self.__module__ = fn.__name__, fn.__qualname__, fn.__module__
        self.__doc__, self.__globals__ = fn.__doc__, fn.__globals__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as Triton does outside of a kernel."""
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


def jit(fn: Any = None, **options: Any) -> Any:
    """Decorate a kernel, with options or without."""
    return (lambda fn: JITFunction(fn, **options)) if fn is None else JITFunction(fn, **options)


class Config:
    """One way to launch a kernel (runtime/autotuner.py:366)."""

    def __init__(
        self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, num_ctas: int = 1,
        maxnreg: int | None = None, pre_hook: Any = None, ir_override: Any = None,
    ) -> None:  # fmt: skip
        self.kwargs, self.num_warps, self.num_stages, self.num_ctas = kwargs, num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook, self.ir_override = maxnreg, pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """What the kernel and its compiler are given."""
        names = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
        return self.kwargs | {name: vars(self)[name] for name in names if vars(self)[name] is not None}


class Autotuner(KernelInterface):
    """A kernel with several configurations."""

    def __init__(self, fn: Any, configs: Any = None) -> None:
        self.fn, self.arg_names, self.configs = fn, fn.arg_names, configs
        self.base_fn = getattr(fn, "base_fn", getattr(fn, "fn", fn))


class Heuristics(Autotuner):
    """A kernel whose meta-parameters follow from its arguments."""


def autotune(configs: Any, key: Any, *rest: Any, **options: Any) -> Callable[[Any], Autotuner]:
    """Decorate a kernel with its configurations."""
    return lambda fn: Autotuner(fn, configs or [Config({})])


def heuristics(values: Any) -> Callable[[Any], Heuristics]:
    """Decorate a kernel with functions of its arguments."""
    return Heuristics


class ConstexprFunction:
    """A function that kernels and the host call alike (runtime/jit.py:1152)."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.__doc__ = fn, fn.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it with the values of constants."""
        args = tuple([_unwrapped(value) for value in args])
        kwargs = {name: _unwrapped(value) for name, value in kwargs.items()}
        return self.fn(*args, **kwargs)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_unwrapped(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_unwrapped(item) for item in value)
    if isinstance(value, InKernels):  # a question more, as there
        return value
    return value.value if isinstance(value, constexpr) else value


def constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    """Decorate such a function."""
    return ConstexprFunction(fn)


@constexpr_function
def cdiv(x: int, y: int) -> int:
    """Quotient, rounded up."""
    return (x + (y - 1)) // y


@constexpr_function
def next_power_of_2(n: int) -> int:
    """The least power of two that is not less, up to 2^64 (__init__.py:68)."""
    n -= 1
    for shift in (1, 2, 4, 8, 16, 32):
        n |= n >> shift
    return n + 1


def set_allocator(allocator: Any) -> None:
    """Keep nothing: what gives kernels their scratch memory is asked at a launch."""


class OutOfResources(Exception):
    """Of a kernel that does not fit on the GPU."""


class constexpr:  # noqa: N801
    """A constant of kernels, which the host reads (language/core.py)."""

    def __init__(self, value: Any) -> None:
        self.value = getattr(value, "value", value)

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == getattr(other, "value", other))

    def __hash__(self) -> int:
        return hash(self.value)


class InKernels:
    """A name of ``triton.language``: a type, handed to kernels, or a function, called there."""

    def __init__(self, name: str) -> None:
        if name.startswith("__"):  # of a module
            raise AttributeError(name)
        self._name = name

    def __getattr__(self, name: str) -> InKernels:
        if name.startswith("__"):
            raise AttributeError(name)
        return InKernels(f"{self._name}.{name}")

    def __repr__(self) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InKernels) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self._name)
