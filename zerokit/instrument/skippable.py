"""Modules that a batch may pass by: under ZeRO-3 a rank that does hangs those that gather their weights."""

from __future__ import annotations

from typing import Any

_TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "audio_tower", "audio_model",
           "audio_encoder", "image_encoder")  # fmt: skip
_TOWER_CONFIGS = ("vision_config", "audio_config")
_BY_TEXT = ("ForConditionalGeneration", "ForImageTextToText", "ForCausalLM")
"""Models that take text alone too; those that compare images with texts (CLIP) always get both."""
_MOST = 4


def skippable_modules(model: Any) -> dict[str, list[str]]:
    """Names of ``experts`` and ``towers`` that a batch may pass by; of experts the list that holds them.

    Experts whose weights are one tensor (Transformers 5) are gathered together, and those in a leaf module
    (``set_z3_leaf_modules``, ``_z3_leaf``; deepspeed/utils/z3_leaf_module.py:23, 0.19.8) as well.
    """
    modules: dict[str, list[str]] = {"experts": _experts(model), "towers": _towers(model)}
    return {kind: names[:_MOST] for kind, names in modules.items() if names}


def _experts(model: Any) -> list[str]:
    names, leaves = [], []
    for name, module in model.named_modules():
        if getattr(module, "_z3_leaf", False):
            leaves.append(name + "." if name else "")
        children = list(module.children())
        alike = len(children) > 1 and len({type(child) for child in children}) == 1
        kinds = {base.__name__ for base in type(module).__mro__}
        holds = name.rpartition(".")[2] == "experts" and kinds & {"ModuleList", "ModuleDict"}
        if holds and alike and not f"{name}.".startswith(tuple(leaves)):
            names.append(name)
    return names


def _towers(model: Any) -> list[str]:
    config = getattr(model, "config", None)
    if not any(getattr(config, key, None) is not None for key in _TOWER_CONFIGS):
        return []
    if not any(word in base.__name__ for base in type(model).__mro__ for word in _BY_TEXT):
        return []
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in _TOWERS]
    return [name for name in names if not any(name.startswith(parent + ".") for parent in names)]
