"""A model's shape as JSON, and back: that of a catalogue model whose family has no row in ``FAMILIES``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from zerokit.domain.model_shape import Gemm, Kept, Linear, ModelShape, Stack


def to_json(shape: ModelShape) -> dict[str, Any]:
    """A JSON-able form; :func:`from_json` is its inverse."""
    return asdict(shape)


def from_json(data: Mapping[str, Any]) -> ModelShape:
    """Read what :func:`to_json` wrote."""
    kept: dict[str, Any] = {
        name: tuple(of) if isinstance(of, list) else of for name, of in data.get("kept", {}).items()
    }
    return ModelShape(**{**data, "stacks": tuple(map(_stack, data["stacks"])), "kept": Kept(**kept)})


def _stack(data: Mapping[str, Any]) -> Stack:
    return Stack(**{**data, "gemms": tuple(map(_gemm, data["gemms"]))})


def _gemm(data: Mapping[str, Any]) -> Gemm:
    modules = tuple(Linear(**module) for module in data.get("modules", ()))
    stacked = data["copies"] > 1 and not modules  # of shapes that were stored before this was kept
    return Gemm(**{"stacked": stacked, "packable": not stacked, **data, "modules": modules})
