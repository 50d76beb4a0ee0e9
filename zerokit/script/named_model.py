"""The model that a script's arguments name."""

from __future__ import annotations

from zerokit.script.arguments import ScriptOptions

_NAMES = (
    "model_name_or_path",
    "pretrained_model_name_or_path",
    "model_name",
    "model_id",
    "base_model",
    "model",
)


def named_model(options: ScriptOptions) -> tuple[str, str] | None:
    """Its name or path, and how it stands in the arguments or their file; None: they name none."""
    given = next((given for name in _NAMES if (given := options.given(name)) is not None), None)
    return (given[0], given[1]) if given is not None and isinstance(given[0], str) else None
