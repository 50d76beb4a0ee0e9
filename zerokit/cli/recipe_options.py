"""Options of ``zerokit plan`` out of a plan.yaml or a recipe; those of the command line win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerokit.cli import options as shared_options
from zerokit.planner import recipes


def merged(recipe: str, options: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """``options`` with the recipe's request where the command line says nothing.

    ``overrides``: ``key=value``, as the recipe itself would say it.

    Raises:
        InputError: there is no such recipe, or an override that it cannot take.
        FileInputError: the file asks for an option that does not exist.
    """
    request = recipes.with_overrides(recipes.load_any(recipe), overrides).request
    flags = {name.lstrip("-").replace("-", "_") for name, _ in shared_options.FLAG_OPTIONS}
    result = dict(options)
    for key, value in request.items():
        if key in flags:
            result[key] = bool(value) or bool(result.get(key))
        elif key == "device":
            result["device"] = value if result.get("device", "auto") == "auto" else result["device"]
        elif result.get(key) is None and value is not None:
            result[key] = recipes.as_text(value)
    if options.get("params") or options.get("model"):
        result["params"], result["model"] = options.get("params"), options.get("model")
    return result
