"""Training arguments that a script sets in its own code once they are read: ``args.bf16 = False``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One of them, of a literal."""

    path: Path
    line: int
    target: str
    name: str
    value: object

    @property
    def text(self) -> str:
        """``train.py:12 sets args.bf16 to False``."""
        return f"{self.path}:{self.line} sets {self.target}.{self.name} to {self.value}"


def assignments(tree: ast.AST, path: Path) -> Iterator[Assignment]:
    """Those of a file, ``setattr`` with a literal name among them; not those to ``self``, which are a class's
    own."""
    for node in ast.walk(tree):
        for target, name, value in _parts(node):
            if not isinstance(value, ast.Constant) or value.value is None:
                continue
            text = ast.unparse(target)
            if text.partition(".")[0] not in ("self", "cls"):
                line = getattr(node, "lineno", 0)
                yield Assignment(path=path, line=line, target=text, name=name, value=value.value)


def _parts(node: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    """Object, attribute and value of what a statement sets."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                yield target.value, target.attr, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        match node.args:
            case [target, ast.Constant(value=str(name)), value]:
                yield target, name, value


def unlike_plan(assigned: Iterable[Assignment], planned: Mapping[str, object]) -> list[str]:
    """Warnings for those that differ from the plan. Whether a line runs only the run tells.

    Args:
        planned: values by the name that a script may use.
    """
    return [
        f"warning: {one.text} after the arguments are read, and the plan has {planned[one.name]}; the run "
        "is held to the plan"
        for one in assigned
        if one.name in planned and one.value != planned[one.name]
    ]
