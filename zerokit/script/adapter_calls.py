"""Where a script adds adapters whatever its options say."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

_CONDITIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.Match, ast.BoolOp, ast.Lambda)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call by name, in a function (empty: none), under a condition or not."""

    name: str
    inside: str
    conditional: bool
    line: int


def added_at(tree: ast.Module, path: Path) -> str | None:
    """``train.py:63: get_peft_model``: a call that every run of the file makes; None: there is none.

    A call under a condition, or in a function that is called under conditions only, may be an option's.
    """
    calls = _calls(tree, inside="", conditional=False)
    return next(
        (
            f"{path}:{call.line}: {call.name}"
            for call in calls
            if call.name == "get_peft_model" and not call.conditional and _runs(call.inside, calls, set())
        ),
        None,
    )


def _calls(node: ast.AST, *, inside: str, conditional: bool) -> list[_Call]:
    found = []
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        found.append(_Call(name=name, inside=inside, conditional=conditional, line=node.lineno))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside, conditional = node.name, False
    elif isinstance(node, _CONDITIONS) and not _is_main(node):
        conditional = True
    for child in ast.iter_child_nodes(node):
        found += _calls(child, inside=inside, conditional=conditional)
    return found


def _is_main(node: ast.AST) -> bool:
    """``if __name__ == "__main__"``, which a run meets."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _runs(function: str, calls: list[_Call], seen: set[str]) -> bool:
    """Whether a run calls the function; one that its own file does not call is taken as called."""
    if not function or function in seen:
        return not function
    of_it = [call for call in calls if call.name == function]
    return not of_it or any(
        not call.conditional and _runs(call.inside, calls, {*seen, function}) for call in of_it
    )
