"""Where a script adds adapters whatever its options say, and on which modules."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTargets:
    """The modules that a script's ``LoraConfig`` names: their names, or ``all-linear``."""

    location: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCalls:
    """Adapters of a script's own file.

    Attributes:
        added_at: where every run adds them; None: nowhere.
        targets: on which modules; None: not known.
    """

    added_at: str | None = None
    targets: AdapterTargets | None = None


def adapter_calls(tree: ast.Module, path: Path) -> AdapterCalls:
    """What the file says of adapters, whatever its options say."""
    return AdapterCalls(added_at=_added_at(tree, path), targets=_targets_of(tree, path))


def _targets_of(tree: ast.Module, path: Path) -> AdapterTargets | None:
    """What the file's one ``LoraConfig`` names in plain text; None: it has none, or several, or computes it.

    Another text than ``all-linear`` is a pattern to PEFT, whose matches are not known here.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "LoraConfig"]
    if len(calls) != 1:
        return None
    given = next((word.value for word in calls[0].keywords if word.arg == "target_modules"), None)
    try:
        value = None if given is None else ast.literal_eval(given)
    except ValueError:
        return None
    names = (value,) if value == "all-linear" else value
    if not isinstance(names, list | tuple | set) or not all(isinstance(name, str) for name in names):
        return None
    return AdapterTargets(location=f"{path}:{calls[0].lineno}", names=tuple(sorted(names)))


def _added_at(tree: ast.Module, path: Path) -> str | None:
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
        found.append(_Call(name=_called(node), inside=inside, conditional=conditional, line=node.lineno))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside, conditional = node.name, False
    elif isinstance(node, _CONDITIONS) and not _is_main(node):
        conditional = True
    for child in ast.iter_child_nodes(node):
        found += _calls(child, inside=inside, conditional=conditional)
    return found


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


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
