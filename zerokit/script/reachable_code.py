"""What of a script's own modules can run in it: importing a module runs its top level, not its functions.

A training script may import a class from another one, whose ``main()`` parses options that this one never
takes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_EVERYTHING = "*"


def reachable(trees: Mapping[Path, ast.Module], entries: Collection[Path]) -> dict[Path, ast.Module]:
    """The modules without what nothing in them runs.

    Left out of a module that is no entry: what stands under ``if __name__ == "__main__"``, and functions and
    imported names that neither the module itself uses nor another one takes from it. A function with a
    decorator stays, as that may register it.

    Args:
        trees: the script's modules.
        entries: those that are run themselves; they stay whole.
    """
    modules = {path: _Module(tree) for path, tree in trees.items() if path not in entries}
    taken = {
        name for path in entries if path in trees for name in _taken(trees[path], _imported(trees[path]))
    }
    growing = True
    while growing:
        taken = taken.union(*(module.taken for module in modules.values()))
        growing = any([module.grow(taken) for module in modules.values()])  # noqa: C419  every one
    return {path: modules[path].code() if path in modules else tree for path, tree in trees.items()}


class _Module:
    """What of one module runs, as far as is known by now.

    Attributes:
        idle: statements of its top level that nothing uses.
        used: names in the others. taken: those of other modules'.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.body = [part for one in tree.body for part in _parts(one)]
        self.imported = _imported(tree)
        self.idle: list[ast.stmt] = []
        self.used: set[str] = set()
        self.taken: set[str] = set()
        for one in self.body:
            if _name(one) is not None:
                self.idle.append(one)
            else:
                self._take_in(one)

    def code(self) -> ast.Module:
        """The module as it runs."""
        idle = set(self.idle)
        return ast.Module(body=[one for one in self.body if one not in idle], type_ignores=[])

    def grow(self, taken: Collection[str]) -> bool:
        """Take in what is used; whether there was any."""
        now = [
            one for one in self.idle if _name(one) in self.used or _name(one) in taken or _EVERYTHING in taken
        ]
        self.idle = [one for one in self.idle if one not in now]
        for one in now:
            self._take_in(one)
        return bool(now)

    def _take_in(self, statement: ast.stmt) -> None:
        self.used |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        self.taken |= set(_taken(statement, self.imported))


def _parts(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement of a module's top level as it is imported: each imported name by itself."""
    if isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            part = ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
            yield ast.copy_location(part, statement)
    elif not _is_main_block(statement):
        yield statement


def _name(statement: ast.stmt) -> str | None:
    """What the statement is used by, if it does nothing until then."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return None if statement.decorator_list else statement.name
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name != _EVERYTHING:
        return statement.names[0].asname or statement.names[0].name
    return None


def _is_main_block(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def _imported(tree: ast.AST) -> set[str]:
    """Names that imports bind."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }  # fmt: skip


def _taken(code: ast.AST, imported: Collection[str]) -> Iterator[str]:
    """Names that code takes from other modules, whichever: imported, or attributes of what is imported."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and _root(node) in imported:
            yield node.attr


def _root(node: ast.expr) -> str | None:
    """``a`` of ``a.b.c``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
