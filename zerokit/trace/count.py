"""How many parameters Transformers builds from a config.json, on no device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError
from zerokit.trace.building.build import AUTO_CLASSES, head_of, read_config


def count_parameters(hf_config: Mapping[str, Any], head: str | None = None) -> int:
    """Elements of all parameters of the model, tied ones once.

    Raises:
        InputError: the installed Transformers cannot build a model of this configuration.
    """
    import torch
    import transformers

    config = read_config(hf_config)
    auto = getattr(transformers, AUTO_CLASSES[head or head_of(hf_config)])
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = auto.from_config(config)
    except Exception as error:  # whatever a model's constructor raises on values that do not go together
        raise InputError(f"transformers cannot build this model: {_first_line(error)}") from error
    return sum(parameter.numel() for parameter in model.parameters())


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
