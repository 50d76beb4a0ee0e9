"""Options of ``zerokit plan`` out of a plan.yaml or a recipe; those of the command line win."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit import recipes
from zerokit.cli import options as shared_options
from zerokit.strictload import load_yaml


def find(recipe: str) -> Path:
    """The file of a recipe's name, or of a path.

    Raises:
        InputError: there is neither, or a name that no recipe may have.
    """
    place = Path(recipe)
    if place.is_dir():
        place = place / "plan.yaml"
    return place if place.is_file() else recipes.committed_path(recipe)


def merged(recipe: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with the recipe's request where the command line says nothing.

    Raises:
        FileInputError: the file asks for an option that does not exist.
    """
    document = load_yaml(find(recipe))
    body = document.value
    request = body.get("request") if isinstance(body, dict) else None
    if not isinstance(request, dict):
        request = recipes.parse_recipe(document).request
    names = {option.name.lstrip("-") for option in shared_options.VALUE_OPTIONS}
    flags = {name.lstrip("-") for name, _ in shared_options.FLAG_OPTIONS}
    result = dict(options)
    for name, value in request.items():
        plain = str(name).replace("_", "-")
        key = plain.replace("-", "_")
        if plain in flags:
            result[key] = bool(value) or bool(result.get(key))
        elif plain == "device":
            result["device"] = value if result.get("device", "auto") == "auto" else result["device"]
        elif plain in names:
            if result.get(key) is None and value is not None:
                result[key] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        else:
            raise document.error(("request", name), f"request.{name}: plan has no option --{plain}")
    if options.get("params") or options.get("model"):
        result["params"], result["model"] = options.get("params"), options.get("model")
    return result
