"""Size and paths of the code, to publish beside each change of its structure:

    python -m tools.house [ROOT ...]     # a table, one column for each tree (default: this one)

A path follows a parameter through the calls that pass it on. Each call is a stay; a return is a stay in a
file that the path had left. All branches are taken one after the other, so it measures what a reader meets,
not what one run executes.
"""

from __future__ import annotations

import ast
import itertools
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PATHS = (
    "cli/plan.py:command:options", "planner/request.py:resolve:options", "search/plan.py:make_plan:request",
    "launcher/attempts.py:dry_run:options", "memory/estimate.py:estimate_traced:strategy",
    "launcher/verdict/verdict.py:judge:evidence",
)  # fmt: skip
MOST_STAYS = 1600
SHORT = 6
_COUNT_MODULES = """
import sys, zerokit.__main__ as program
sys.argv = ["zerokit", "plan", "--params", "70b", "--gpus", "8"]
try:
    program.main()
except SystemExit:
    pass
print(sum(name.split(".")[0] == "zerokit" for name in sys.modules), file=sys.stderr)
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One file, with its functions and what it imports."""

    name: str
    path: Path
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_text())

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Functions by name, methods as ``Class.name``."""
        found: dict[str, Function] = {}
        for node in self.tree.body:
            if isinstance(node, Function):
                found[node.name] = node
            elif isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, Function)}
        return found

    @cached_property
    def imports(self) -> set[tuple[str, str]]:
        """Names that stand for something imported, each with its dotted name; functions import too."""
        return {
            (alias.asname or alias.name, f"{node.module}.{alias.name}")
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }


class House:
    """The product's modules below one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = sorted((root / "zerokit").rglob("*.py"))
        dotted = [
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in files
        ]
        self.modules = {name: Module(name=name, path=path) for name, path in zip(dotted, files, strict=True)}

    def target(self, module: Module, called: ast.expr) -> tuple[Module, str] | None:
        """The function of ours that a call reaches, where the text shows it."""
        word = ast.unparse(called)
        if word in module.functions:
            return module, word
        first, _, rest = word.partition(".")
        for name, dotted in module.imports:
            home, _, last = (f"{dotted}.{rest}" if rest else dotted).rpartition(".")
            if name == first and home in self.modules and last in self.modules[home].functions:
                return self.modules[home], last
        return None

    def stays(self, start: str) -> Iterator[str]:
        """The files that a parameter passes, call by call."""
        file, function, parameter = start.split(":")
        module = self.modules["zerokit." + file.removesuffix(".py").replace("/", ".")]
        yield from self._follow(module, function, parameter, set())

    def _follow(
        self, module: Module, function: str, parameter: str, seen: set[tuple[str, str, str]]
    ) -> Iterator[str]:
        yield module.name
        here = (module.name, function, parameter)
        if here in seen or len(seen) > MOST_STAYS:
            return
        seen.add(here)
        node = module.functions[function]
        mine = {parameter}
        for inner in _in_order(node):
            if isinstance(inner, ast.Assign) and _is_part(inner.value, mine):
                mine |= {name.id for name in inner.targets if isinstance(name, ast.Name)}
            if not isinstance(inner, ast.Call):
                continue
            reached = self.target(module, inner.func)
            if reached is None:
                continue
            names = [argument.arg for argument in _arguments(reached[0].functions[reached[1]])]
            given = [*zip(names, inner.args, strict=False), *((one.arg, one.value) for one in inner.keywords)]
            for name, value in given:
                if name in names and _is_part(value, mine):
                    yield from self._follow(*reached, str(name), seen)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
        yield child


def _arguments(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _is_part(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression is one of these names, an attribute of one, or a changed copy."""
    if isinstance(value, ast.IfExp):
        return _is_part(value.body, names) or _is_part(value.orelse, names)
    if isinstance(value, ast.Call):
        copied = ast.unparse(value.func).endswith(("replace", "Path")) and value.args
        return bool(copied and _is_part(value.args[0], names))
    if isinstance(value, ast.Attribute | ast.Subscript | ast.Starred):
        return _is_part(value.value, names)
    return isinstance(value, ast.Name) and value.id in names


def python_files(folder: Path) -> list[Path]:
    """The Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def lines_of(paths: list[Path]) -> int:
    """Lines of these files together."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def functions_of(house: House) -> list[Function]:
    """All functions and methods, nested ones too."""
    return [
        node
        for module in house.modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    ]


def helpers_with_one_caller(house: House) -> list[str]:
    """Private functions at the top of a module, shorter than :data:`SHORT` lines, that one place names."""
    named = Counter(
        name
        for module in house.modules.values()
        for node in ast.walk(module.tree)
        for name in (
            [node.id]
            if isinstance(node, ast.Name)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else []
        )
    )
    return [
        f"{module.path.relative_to(house.root)}:{node.lineno}: {name}"
        for module in house.modules.values()
        for name, node in module.functions.items()
        if name.startswith("_")
        and not node.decorator_list
        and (node.end_lineno or 0) - node.lineno + 1 < SHORT
        and named[name] == 1
    ]


def modules_at_start(root: Path) -> str:
    """Modules of ours that ``plan --params 70b --gpus 8`` loads."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_MODULES], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stderr.splitlines()[-1] if done.returncode == 0 else "failed"


def figures(root: Path) -> dict[str, str]:
    """Each figure of one checkout by its name."""
    house = House(root)
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in functions_of(house)]
    found = {
        "product, lines": f"{lines_of(python_files(root / 'zerokit')):,}",
        "product, files": str(len(house.modules)),
        "functions": f"{len(lengths):,}",
        "function, median lines": f"{statistics.median(lengths):g}",
        f"private, under {SHORT} lines, one caller": str(len(helpers_with_one_caller(house))),
        "tests, lines": f"{lines_of(python_files(root / 'tests')):,}",
        "benchmarks, lines": f"{lines_of(python_files(root / 'benchmarks')):,}",
        "modules at the start of plan": modules_at_start(root),
    }
    for path in PATHS:
        try:
            stays = list(house.stays(path))
        except KeyError:
            found[path] = "gone"
            continue
        left: set[str] = set()
        returns = 0
        for before, here in itertools.pairwise(stays):
            left |= {before} if before != here else set()
            returns += before != here and here in left
        found[path] = f"{len(stays)} stays, {len(set(stays))} files, {returns} returns"
    return found


def main() -> None:
    """Print the table."""
    roots = [Path(word).resolve() for word in sys.argv[1:]] or [Path(__file__).resolve().parents[1]]
    columns = [figures(root) for root in roots]
    print("| |" + "".join(f" {root.name} |" for root in roots))
    print("| --- |" + " --- |" * len(roots))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main()
