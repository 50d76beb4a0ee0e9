"""What a file's calls of argparse say: options, which of them are flags, and literal defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class ParserCalls:
    """Of one file.

    Attributes:
        options: option strings given to ``add_argument``.
        flags: those of them that take no value.
        defaults: literal defaults by the option's name, with underscores; a path beside the script is whole.
        has_subcommands: the parser has subparsers.
    """

    options: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    defaults: dict[str, object] = field(default_factory=dict)
    has_subcommands: bool = False


def parser_calls(tree: ast.Module, path: Path) -> ParserCalls:
    """Read the file at ``path``."""
    found = ParserCalls()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = called(node)
        if name == "add_argument":
            _add_argument(found, node, path)
        elif name == "add_subparsers":
            found.has_subcommands = True
    return found


def called(node: ast.Call) -> str:
    """The name of what is called, without its owner."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _add_argument(found: ParserCalls, node: ast.Call, path: Path) -> None:
    texts = set(_texts(node))
    found.options |= texts
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    action = keywords.get("action")
    if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
        found.flags |= texts
    default = _literal(keywords.get("default"), path)
    if default is not None:
        found.defaults |= {text.lstrip("-").replace("-", "_"): default for text in texts}


def _texts(node: ast.Call) -> Iterator[str]:
    for argument in node.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


def _literal(value: ast.expr | None, path: Path) -> object:
    """A constant, or ``Path(__file__).with_name("…")`` with what it stands for; None: neither."""
    if isinstance(value, ast.Constant):
        return value.value
    if value is not None and ast.unparse(value).startswith("Path(__file__).with_name("):
        name = next(_texts(value), None) if isinstance(value, ast.Call) else None
        return str(path.with_name(name)) if name else None
    return None
