"""Tools that fine-tune from a file of their own: how they are told of a plan beside that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What one tool, known by its package, takes beside its file.

    Attributes:
        deepspeed_option: by which it takes a DeepSpeed file; None: it follows the environment.
        assigns: ``KEY=VALUE`` after the file counts more than the file.
        negated: its names for the opposite of fields of TrainingArguments.
        defaults: values that it gives such fields where nobody does.
    """

    deepspeed_option: str | None = None
    assigns: bool = False
    negated: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


_ANY = Tool()
_TOOLS: Mapping[str, Tool] = {
    # Its loader places the model by its own setting, not by Accelerate's (0.19, loaders/model.py:454, 917).
    "axolotl": Tool(deepspeed_option="--deepspeed"),
    # 0.9.5, hparams/parser.py:91 and model/model_utils/checkpointing.py:164
    "llamafactory": Tool(
        assigns=True,
        negated={"gradient_checkpointing": "disable_gradient_checkpointing"},
        defaults={"gradient_checkpointing": True},
    ),
}


def tool_of(package: str | None) -> Tool:
    """The tool of an installed package; one that takes nothing beside its file where it is not known."""
    return _TOOLS.get(package or "", _ANY)
