"""Writes ``zerokit/domain/tensor_plans.py``: ``python -m tools.tensor_plans``, with the newest Transformers.

Of the catalogue's causal models a type is listed that has a tensor parallel plan of linear layers cut by
columns and by rows alone (``base_model_tp_plan``), and the parts that its groups for FSDP2 name
(``base_model_fsdp_plan``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from zerokit.catalog import models
from zerokit.domain.profile import Variant
from zerokit.trace.building.build import build

TARGET = Path(__file__).parents[1] / "zerokit" / "domain" / "tensor_plans.py"
_STYLES = {"colwise", "rowwise", "replicated_with_grad_allreduce"}


def has_plan(model: Any) -> bool:
    """Whether its layers are cut so; of other parts' names all but the layers would be the root's."""
    styles = {*(model.config.base_model_tp_plan or {}).values()}
    groups = {name.removesuffix(".*") for name in model.config.base_model_fsdp_plan or {}}
    parts = {name for name, _ in model.base_model.named_children()}
    return bool(styles) and styles <= _STYLES and bool(groups) and groups <= parts


def text() -> str:
    """What the file must contain."""
    causal = (model.hf_config for model in map(models.load, models.names()) if model.head == "causal")
    of_type = {str(config["model_type"]): config for config in causal}
    named = transformers.CONFIG_MAPPING
    names = [
        name
        for name, config in sorted(of_type.items())
        if name in named and getattr(named[name], "base_model_tp_plan", None)
        if has_plan(build(config, Variant(attention="eager"), head="causal").model)
    ]
    lines = "".join(f'        "{name}",\n' for name in names)
    return (
        f'"""Models that Transformers {transformers.__version__} divides by a tensor parallel plan '
        f'(``tools/tensor_plans.py`` writes it)."""\n\nMODEL_TYPES = frozenset(\n    {{\n{lines}    }}\n)\n'
        '"""Of configurations (``model_type``)."""\n'
    )


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
