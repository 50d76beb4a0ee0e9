"""Which files belong to a script: modules that it imports from its folder, its package or its checkout."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator
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
    """The file of a module here or of an installed package.

    Raises:
        InputError: there is none.
    """
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
        names = {name for folder in folders for name in _names_in(folder)}
        found = [part] if part in names else misspelt(part, sorted(names))
        if not found:
            return None
        meant += found
        folders = [folder / found[0] for folder in folders]
    name = ".".join(meant)
    return name if _module_of(name) is not None else None


def _names_in(folder: Path) -> Iterator[str]:
    """What can be imported from a folder."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            name = entry.stem if entry.suffix == ".py" else entry.name
            if name.isidentifier() and (entry.suffix == ".py" or entry.is_dir()):
                yield name


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
            path = _module_file(base, name)
            if path is None and level == 0 and package is None:
                path = _checked_out(name, root)
            if path is not None:
                yield path


def _module_file(base: Path, name: str) -> Path | None:
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
    above = (path for folder in list(root.parents)[:3] if (path := _module_file(folder, name)) is not None)
    installed = (
        path for folder in _package_folders(package) if (path := _module_file(folder, rest)) is not None
    )
    return next(above, None) or next(installed, None)
