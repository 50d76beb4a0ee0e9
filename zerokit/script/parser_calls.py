"""Options that a script's own source declares: what its calls of argparse say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def written_value(given: ast.expr | None, tree: ast.AST, path: Path, depth: int = 4) -> object:
    """The literal that an expression stands for where the file gives it once: by itself, as an option's
    default, or under the name that is read. None: only the run knows."""
    if isinstance(given, ast.Constant):
        return given.value
    if given is None or not depth:
        return None
    if isinstance(given, ast.Call) and called(given) in ("float", "int") and len(given.args) == 1:
        value = written_value(given.args[0], tree, path, depth - 1)
        return value if isinstance(value, int | float) else None
    options = parser_calls(tree, path).by_attribute
    if isinstance(given, ast.Attribute) and given.attr in options:
        return options[given.attr]
    name = _name(given)
    values = [value for at, value in _names_given(tree) if at == name] if name else []
    return written_value(values[0], tree, path, depth - 1) if len(values) == 1 else None


def _names_given(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names, attributes and keys that the file gives a value, each time, with the value where it shows."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((_name(target), value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.Call(keywords=[*words])):  # field(default=…)
                yield _name(target), next((word.value for word in words if word.arg == "default"), None)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                yield _name(target), value
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.NamedExpr(target=target):
                yield _name(target), None
            case ast.arg(arg=name):
                yield name, None
            case ast.Dict(keys=keys, values=values):
                yield from (
                    (key.value, value)
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                )


def _name(node: ast.expr) -> str:
    """What an expression reads or sets: a name, an attribute, or a literal key; empty: something else."""
    match node:
        case (
            ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return name
    return ""


def called(node: ast.Call) -> str:
    """The name of what is called, without its owner."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _texts(node: ast.Call) -> list[str]:
    """The arguments without a name that are literal texts."""
    return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
