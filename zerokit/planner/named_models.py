"""Whether a model that a script's arguments name is the one that a plan was made for, by its configuration.

Nothing is built or traced for it: the sizes that stand in both configurations are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.catalog import models
from zerokit.errors import InputError
from zerokit.planner import hub_cache
from zerokit.units import format_count

_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_experts",
          "num_local_experts", "n_embd", "n_layer", "d_model", "num_layers")  # fmt: skip
_SAME_PARAMETERS = 0.02  # a vocabulary that was resized, say


def unlike_planned(
    name: str, spelt: str, request: Mapping[str, Any], parameters: int | None, *, by_options: bool = True
) -> str | None:
    """What to say of a model that the script's arguments name, as :func:`another_model`.

    Args:
        by_options: say which option plans for it, as no command is named that plans with the script.
    """
    another = another_model(name, spelt, request, parameters)
    if another is None:
        return None
    again = f"; plan again with ⟨model⟩ {name}" if by_options else ""
    return f"{another}: memory and time are not those of this run{again}"


def another_model(name: str, spelt: str, request: Mapping[str, Any], parameters: int | None) -> str | None:
    """That the script's arguments name another model than a plan; None: it is the plan's, or not known.

    Args:
        name: as the script gets it: a folder, or a repository of the Hub.
        spelt: how it stands in the arguments.
        request: the plan's.
        parameters: those of the plan's model.
    """
    planned, named = str(request.get("model") or ""), config_of(name)
    if named is None or name == planned:
        return None
    config = config_of(planned) if planned else None
    difference = _of_size(name, parameters) if config is None else _of_configs(named, config)
    if difference is None:
        return None
    planned_model = planned or f"⟨params⟩ {request.get('params')}"
    return f"{spelt} is another model than the plan's {planned_model} ({difference})"


def config_of(name: str) -> Mapping[str, Any] | None:
    """A model's configuration: of its folder, the catalogue, or this machine's cache of the Hub."""
    from zerokit.strictload import load_json

    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if not path.is_file():
        try:
            return models.resolve(name)[0].hf_config
        except InputError:
            cached = hub_cache.cached_config(name) if hub_cache.is_repository(name) else None
        if cached is None:
            return None
        path = cached
    try:
        config = load_json(path, strict=False).value
    except InputError:
        return None
    return config if isinstance(config, dict) else None


def _of_configs(named: Mapping[str, Any], planned: Mapping[str, Any]) -> str | None:
    named, planned = _flat(named), _flat(planned)
    if named.get("model_type") != planned.get("model_type"):
        return f"{named.get('model_type')}, not {planned.get('model_type')}"
    unlike = [key for key in _SIZES if key in named and key in planned and named[key] != planned[key]]
    return ", ".join(f"{key} {named[key]}, not {planned[key]}" for key in unlike[:2]) or None


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the sizes of the text part of a model of images and text."""
    text = config.get("text_config")
    return {**(text if isinstance(text, dict) else {}), **config}


def _of_size(name: str, parameters: int | None) -> str | None:
    """Of a plan for a bare size: the parameters of a model of the catalogue beside it."""
    try:
        count = models.resolve(name)[0].parameters
    except InputError:
        return None
    if not parameters or abs(count / parameters - 1) <= _SAME_PARAMETERS:
        return None
    return f"{format_count(count)} parameters, not {format_count(parameters)}"
