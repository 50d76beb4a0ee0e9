"""Options that a script's own source declares: what its calls of argparse say."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class ParserCalls:
    """What the calls of argparse in one file say.

    Attributes:
        options: option strings given to ``add_argument``.
        flags: those of them that take no value.
        defaults: literal defaults by the option's name, with underscores; a path beside the script is whole.
        by_attribute: literal defaults, by the attribute that holds an option's value.
        has_subcommands: the parser has subparsers.
    """

    options: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    defaults: dict[str, object] = field(default_factory=dict)
    by_attribute: dict[str, object] = field(default_factory=dict)
    has_subcommands: bool = False


def parser_calls(tree: ast.AST, path: Path) -> ParserCalls:
    """Read the file at ``path``."""
    found = ParserCalls()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        found.has_subcommands |= called(node) == "add_subparsers"
        if called(node) != "add_argument":
            continue
        names = _texts(node)
        found.options.update(names)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        action, default = keywords.get("action"), keywords.get("default")
        if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
            found.flags.update(names)
        value = default.value if isinstance(default, ast.Constant) else None
        option = next((name for name in names if name.startswith("--")), None)
        if option is not None and not isinstance(keywords.get("dest"), ast.Constant):
            found.by_attribute[option[2:].replace("-", "_")] = value
        if isinstance(default, ast.Call) and ast.unparse(default).startswith("Path(__file__).with_name("):
            value = next((str(path.with_name(name)) for name in _texts(default)), None)
        if value is not None:
            found.defaults |= {name.lstrip("-").replace("-", "_"): value for name in names}
    return found


def called(node: ast.Call) -> str:
    """The name of what is called, without its owner."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _texts(node: ast.Call) -> list[str]:
    """The arguments without a name that are literal texts."""
    return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
