"""What to say of a model whose modules a batch may pass by, before a rank does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def warnings_of(engine: Mapping[str, Any]) -> list[str]:
    """One sentence for each kind of module; ``engine``: the ``engine`` line of a rank's file."""
    modules = engine.get("skippable")
    if engine.get("zero_stage") != 3 or not isinstance(modules, dict):
        return []
    warnings = []
    if experts := _names(modules.get("experts")):
        warnings.append(
            f"mixture of experts under ZeRO-3 without a leaf module ({experts}): a rank none of whose tokens "
            "go to an expert does not gather its weights, and the others hang; call deepspeed.utils."
            "set_z3_leaf_modules(model, [the class that holds the experts]) before the engine is made"
        )
    if towers := _names(modules.get("towers")):
        warnings.append(
            f"{towers} under ZeRO-3 runs only for batches with an image or sound: a rank whose batch has "
            "none does not gather its weights, and the others hang; give every batch one, if only a blank"
        )
    return warnings


def _names(value: object) -> str:
    return ", ".join(str(name) for name in value) if isinstance(value, list) else ""
