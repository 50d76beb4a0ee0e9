"""Which code belongs to a script: modules that it imports from its folder, its package or its checkout, and
what of these can run in it. Importing a module runs its top level, not its functions: a training script may
import a class from another one, whose ``main()`` parses options that this one never takes."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import itertools
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from zerokit.errors import InputError
from zerokit.suggest import misspelt


def installed_package(path: Path) -> Path | None:
    """The folder of the installed package that a file belongs to; of it alone the source is read."""
    for folder in path.resolve().parents:
        if folder.parent.name in ("site-packages", "dist-packages"):
            return folder
    return None


def find_module(module: str) -> Path:
    """The file of a module here or of an installed package. Raises InputError: there is none."""
    path = _module_of(module)
    if path is None:
        meant = _meant(module)
        hint = f"; did you mean -m {meant}?" if meant else ""
        raise InputError(
            f"-m {module}: no such module here or among the installed packages{hint}", field="module"
        )
    return path


def _module_of(module: str) -> Path | None:
    parts = module.split(".")
    relative = Path.cwd().joinpath(*parts)
    for candidate in (relative.with_suffix(".py"), relative / "__main__.py"):
        if candidate.is_file():
            return candidate
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        base = Path(folder).joinpath(*parts[1:])
        for candidate in (base.with_suffix(".py"), base / "__main__.py"):
            if candidate.is_file():
                return candidate
    return None


def _meant(module: str) -> str | None:
    """The module that a name is with slips of the finger in some of its parts."""
    folders = [Path.cwd(), *(Path(entry) for entry in sys.path if entry)]
    meant: list[str] = []
    for part in module.split("."):
        names = set()
        for folder in folders:
            with contextlib.suppress(OSError):
                entries = [entry for entry in folder.iterdir() if entry.suffix == ".py" or entry.is_dir()]
                names |= {entry.stem if entry.suffix == ".py" else entry.name for entry in entries}
        names = {name for name in names if name.isidentifier()}
        found = [part] if part in names else misspelt(part, sorted(names))
        if not found:
            return None
        meant += found
        folders = [folder / found[0] for folder in folders]
    name = ".".join(meant)
    return name if _module_of(name) is not None else None


def own_modules(tree: ast.Module, root: Path, folder: Path, package: str | None) -> Iterator[Path]:
    """Files that the module imports from ``root`` (there, of ``package`` alone), or relatively."""
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        level = 0
        if isinstance(node, ast.Import):
            names = [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            level = node.level
            base = root if level == 0 else folder
            for _ in range(node.level - 1):
                base = base.parent
            prefix = f"{node.module}." if node.module else ""
            names = [(base, prefix + alias.name) for alias in node.names]
            names += [(base, node.module)] if node.module else []
        for base, name in names:
            top = name.partition(".")[0]
            if package is not None and level == 0 and (top != package or top in _LIBRARIES):
                continue
            path = module_file(base, name)
            if path is None and level == 0 and package is None:
                path = _checked_out(name, root)
            if path is not None:
                yield path


def module_file(base: Path, name: str) -> Path | None:
    """The file of a module below a folder; None: there is none."""
    candidate = base.joinpath(*name.split("."))
    candidates = (candidate.with_suffix(".py"), candidate / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


_LIBRARIES = frozenset(
    {"accelerate", "datasets", "deepspeed", "peft", "torch", "transformers", "trl", "zerokit"}
)
"""What is no part of a script even where it is worked on in a checkout."""


@functools.cache
def _package_folders(package: str) -> tuple[Path, ...]:
    """Where a package lies that was installed from a checkout (``pip install -e``); the working copy is the
    user's own code, unlike what lies among the installed packages."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return ()
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    return tuple(f for f in folders if not {"site-packages", "dist-packages"} & set(f.parts))


def _checked_out(name: str, root: Path) -> Path | None:
    """A module of the checkout that the script lies in, wherever its package is found at run time."""
    package, _, rest = name.partition(".")
    if package in sys.stdlib_module_names or package in _LIBRARIES or not rest:
        return None
    above = (module_file(folder, name) for folder in list(root.parents)[:3])
    installed = (module_file(folder, rest) for folder in _package_folders(package))
    return next(filter(None, itertools.chain(above, installed)), None)


# ---------------------------------------------------------------- what can run

MAIN = ("__name__ == '__main__'", "'__main__' == __name__")


def reachable(trees: Mapping[Path, ast.Module], entries: Collection[Path]) -> dict[Path, ast.Module]:
    """The modules without what nothing in them runs.

    Left out of a module that is no entry: what stands under ``if __name__ == "__main__"``, and functions and
    imported names that neither the module itself uses nor another one takes from it. A function with a
    decorator stays, as that may register it.

    Args:
        trees: the script's modules.
        entries: those that are run themselves; they stay whole.
    """
    runs: dict[Path, list[ast.stmt]] = {path: [] for path in trees}
    idle: list[tuple[Path, str, ast.stmt]] = []
    waiting: list[tuple[Path, ast.stmt]] = []
    for path, tree in trees.items():
        for one in tree.body if path in entries else _parts(tree):
            name = None if path in entries else _name(one)
            if name is None:
                waiting.append((path, one))
            else:
                idle.append((path, name, one))
    used: set[tuple[Path | None, str]] = set()
    while waiting:
        for path, one in waiting:
            runs[path].append(one)
            used |= {(path, node.id) for node in ast.walk(one) if isinstance(node, ast.Name)}
            used |= {(None, name) for name in _taken(one)}
        found = [one for one in idle if {(one[0], one[1]), (None, one[1]), (None, "*")} & used]
        idle = [one for one in idle if one not in found]
        waiting = [(path, one) for path, _, one in found]
    return {path: ast.Module(body=body, type_ignores=[]) for path, body in runs.items()}


def _parts(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of a module's top level as it is imported: each imported name by itself."""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                part = ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
                yield ast.copy_location(part, statement)
        elif not (isinstance(statement, ast.If) and ast.unparse(statement.test) in MAIN):
            yield statement


def _name(statement: ast.stmt) -> str | None:
    """What the statement is used by, if it does nothing until then."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return None if statement.decorator_list else statement.name
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name != "*":
        return statement.names[0].asname or statement.names[0].name
    return None


def _taken(code: ast.AST) -> Iterator[str]:
    """Names that code takes from other modules, whichever: imported, or attributes of a name."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr
