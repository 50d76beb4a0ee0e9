"""Results of operators for which some PyTorch versions have no shape rule of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zerokit.rehearsal.process.machine import Machine

Rule = Callable[[Machine, tuple[Any, ...], dict[str, Any]], Any]

_OUT_DTYPE = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Products with ``out_dtype`` (``native/cuda/Blas.cpp``), and where their two factors stand. PyTorch 2.11
takes ``addmm``'s decomposition for ``addmm.dtype``, with the dtype as beta."""


def _product(left: int, right: int) -> Rule:
    def rule(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        factors = args[left], args[right]
        dtype = kwargs.get("out_dtype") or next(value for value in args if isinstance(value, torch.dtype))
        shape = (*factors[0].shape[:-1], factors[1].shape[-1])
        return machine.empty(shape, dtype, factors[0].fake_device)

    return rule


def _given_output(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs["out"]


RULES: dict[str, Rule] = {
    **{f"aten::{name}.dtype": _product(*places) for name, places in _OUT_DTYPE.items()},
    **{f"aten::{name}.dtype_out": _given_output for name in _OUT_DTYPE},
}
"""By the operator's full name."""
