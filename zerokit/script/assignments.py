"""Training arguments that a script sets in its own code once they are read: ``args.bf16 = False``."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping
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


def unlike_plan(
    assigned: Iterable[Assignment], planned: Mapping[str, object], held: Container[str], planning_again: str
) -> list[str]:
    """Warnings for those that differ from the plan, the last with what to do.

    Args:
        planned: values by the name that a script may use.
        held: names of those on which a run that ended well is not as planned.
        planning_again: the command that plans for what the script sets; empty: there is none.
    """
    unlike = [one for one in assigned if one.name in planned and one.value != planned[one.name]]
    warnings = []
    for one in unlike:
        ends = " and the run ends as not planned, with exit code 9" if one.name in held else ""
        warnings.append(
            f"warning: {one.text} after the arguments are read: {one.value} is what runs, not the plan's "
            f"{planned[one.name]}{f',{ends}' if ends else ''}"
        )
    if warnings:
        again = f", or plan for what it does: `{planning_again}`" if planning_again else ", or plan for it"
        warnings[-1] += f"; remove {'that line' if len(unlike) == 1 else 'those lines'}{again}"
    return warnings
