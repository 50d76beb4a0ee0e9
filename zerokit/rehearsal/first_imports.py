"""What a script imports of installed libraries before it does anything else, as far as its source says."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError
from zerokit.script.entry_points import Target
from zerokit.script.own_modules import MAIN, find_module, installed_package, module_file

_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FirstImports:
    """``module``, or ``module:name`` where a name is taken from it; ``are_later``: something else may be done
    before some of them."""

    names: tuple[str, ...] = ()
    are_later: bool = False


def first_imports(target: Target, arguments: Sequence[str] = ()) -> FirstImports:
    """The imports in their order.

    Of a script only what stands before its first other statement, as that may decide what an import does. A
    module of an installed package decides no such thing but by what it sets: of one, all that nothing guards,
    in functions, too, where they are called, and DeepSpeed, where its arguments ask Transformers for it.
    """
    try:
        path = Path(target.script) if target.script is not None else find_module(target.name)
    except InputError:
        return FirstImports()
    is_installed = target.script is None and installed_package(path) is not None
    parents = [target.name.rpartition(".")[0]] if is_installed else []
    found = _First(path.parent if target.script is not None else Path.cwd(), whole=is_installed)
    asked = (
        ["deepspeed"] if is_installed and "--deepspeed" in arguments and _is_installed("deepspeed") else []
    )
    names = dict.fromkeys([*filter(None, parents), *found.of_file(path), *asked])
    return FirstImports(tuple(names), are_later=is_installed)


class _First:
    """A walk over a script and its own modules.

    Args:
        root: where its own modules are.
        whole: whether it goes on behind statements that are no imports.

    Attributes:
        is_over: whether such a statement was met.
    """

    def __init__(self, root: Path, *, whole: bool) -> None:
        self._root, self._whole = root, whole
        self._functions: dict[str, ast.FunctionDef] = {}
        self._read: set[Path] = set()
        self.is_over = False

    def of_file(self, path: Path) -> Iterator[str]:
        """The imports of a file and of the script's own modules that it imports."""
        if path in self._read:
            return
        self._read.add(path)
        try:
            tree = ast.parse(path.read_bytes() if path.stat().st_size <= _LARGEST_BYTES else b"")
        except (OSError, SyntaxError, ValueError, RecursionError):
            self.is_over = True
            return
        outside = self._functions
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        yield from self._of_body(tree.body)
        self._functions = outside

    def _of_body(self, body: list[ast.stmt]) -> Iterator[str]:
        for statement in body:
            if self.is_over:
                return
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    yield from self._of_module(alias.name, ())
            elif isinstance(statement, ast.ImportFrom):
                names = tuple(alias.name for alias in statement.names)
                if statement.level or statement.module is None:
                    self.is_over = not self._whole
                elif statement.module != "__future__":
                    yield from self._of_module(statement.module, names)
            elif isinstance(statement, ast.If) and ast.unparse(statement.test) in MAIN:
                yield from self._of_body(statement.body)
            elif isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
                yield from self._of_body(statement.orelse)
            elif not _does_nothing(statement):
                yield from self._of_calls(statement)
                self.is_over = not self._whole

    def _of_module(self, module: str, names: tuple[str, ...]) -> Iterator[str]:
        own = module_file(self._root, module)
        if own is not None and not self._whole:
            yield from self.of_file(own)
        elif _is_installed(module):
            yield module
            yield from (f"{module}:{name}" for name in names if name != "*")
        else:  # somewhere else, or nowhere
            self.is_over = not self._whole

    def _of_calls(self, statement: ast.stmt) -> Iterator[str]:
        """Functions of the file that the statement calls."""
        if not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign):
            return
        call = statement.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            arguments = (*call.args, *(keyword.value for keyword in call.keywords))
            if not self._whole and any(map(_computes, arguments)):
                return
            function = self._functions.pop(call.func.id, None)
            yield from self._of_body(function.body if function is not None else [])


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether no library can notice it: definitions, and values that nothing computes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names_only = all(isinstance(target, ast.Name) for target in targets)
    return names_only and not _computes(statement)


def _computes(code: ast.AST) -> bool:
    return any(isinstance(node, ast.Call | ast.NamedExpr | ast.Await) for node in ast.walk(code))


def _is_installed(module: str) -> bool:
    """Whether the module belongs to an installed package or to Python."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and installed_package(Path(spec.origin)) is not None
