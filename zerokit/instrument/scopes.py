"""Names of classes and functions by the lines of a source file, without importing it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from pathlib import Path


def scopes(file: str, lines: Iterable[int]) -> dict[int, str]:
    """Give the innermost class and function around each of a file's lines, such as ``LlamaMLP.forward``;
    lines outside of functions, and those of a file that cannot be read, are left out."""
    return {line: name for line in lines for first, last, name in _scopes(file) if first <= line <= last}


@functools.cache
def _scopes(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name of each, outer ones before those in them."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    named: list[tuple[int, int, str]] = []

    def walk(node: ast.AST, outer: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = outer
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*outer, child.name)
                named.append((child.lineno, child.end_lineno or child.lineno, ".".join(inner)))
            if isinstance(child, ast.stmt):
                walk(child, inner)

    walk(tree, ())
    return tuple(named)
