"""A plan from that of a script, made without the script: what is kept of it, and that it is not rehearsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.commands import command_text
from zerokit.planner.options import given_options
from zerokit.planner.recipes import load_any
from zerokit.values import frozen_dataclass


@frozen_dataclass
class ScriptBefore:
    """The script of the plan that another is made from.

    Attributes:
        words: its name and arguments, where it is in this folder; else empty.
        model: the name of its model, where that is planned for; empty: another is, or it is not known.
        note: that the plan is not rehearsed with it, and what rehearses it.
    """

    words: tuple[str, ...]
    model: str
    note: str


def script_before(
    recipe: str, overrides: Sequence[str], options: Mapping[str, Any], request: Mapping[str, Any]
) -> ScriptBefore | None:
    """The script that the plan named as a recipe was made with; None: it was made with none.

    Args:
        options: those given beside the recipe. request: what is planned for, with both.
    """
    found = load_any(recipe)
    if not found.script.get("name"):
        return None
    name, arguments = str(found.script["name"]), map(str, found.script.get("arguments") or ())
    words = (name, *arguments) if Path(name).is_file() else ()
    is_same = "model" in found.decided_by_script and request.get("model") == found.request.get("model")
    again = command_text(
        "plan", "--recipe", recipe, *overrides, options=given_options(options), script=words or ("SCRIPT",)
    )
    return ScriptBefore(
        words=words,
        model=str(found.script.get("model") or "") if is_same else "",
        note=f"not rehearsed with {name}, as the plan was that it is made from; to do so: {again}",
    )
