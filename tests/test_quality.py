"""The code keeps the rules of pyproject.toml: style, formatting, types, direction of imports."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

from tools import tests_of
from tools.room_contract import RoomContract

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
    ],
    ids=" ".join,
)
def test_rules_are_kept(command: list[str]) -> None:
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


def problems_of(rows: list[str], imports: list[tuple[str, str]]) -> list[str]:
    """What the contract of the rooms finds in a package ``p`` with these imports."""
    graph = grimp.ImportGraph()
    for module in ("p", "p.a", "p.b", "p.b.c", "p.d", "json", "torch"):
        graph.add_module(module, is_squashed=not module.startswith("p"))
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    contract = RoomContract("rooms", {"root_packages": ["p"]}, {"root": "p", "rooms": rows})
    problems: list[str] = contract.check(graph, verbose=False).metadata["problems"]
    return problems


@pytest.mark.parametrize(
    ("rows", "imports", "problems"),
    [
        (["a -> b", "b ->", "d ->"], [("p.a", "p.b"), ("p.a", "json"), ("p.b", "p.b.c")], []),
        (["a ->", "b ->", "d ->"], [("p.a", "p.b.c")], ["p.a imports p.b.c"]),
        (["a -> b", "b ->", "b.c ->", "d ->"], [("p.a", "p.b"), ("p.a", "p.b.c")], ["p.a imports p.b.c"]),
        (["a ->", "b ->", "d ->"], [("p.a", "torch")], ["p.a imports torch"]),
        (["a => b", "b -> d", "d ->"], [("p.a", "p.b"), ("p.b", "p.d")], ["p.a imports p.d"]),
        (["a -> d", "b ->", "d ->"], [], ["a imports no d: take it out of the row"]),
        (["a ->", "b ->"], [], ["p.d is in no room: give it a row"]),
    ],
)
def test_the_contract_of_the_rooms_finds(
    rows: list[str], imports: list[tuple[str, str]], problems: list[str]
) -> None:
    assert problems_of(rows, imports) == problems


@pytest.mark.parametrize("script", ["launch.sh", ".ci/run"])
def test_shell_scripts_parse_and_are_executable(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    shell = path.read_text().splitlines()[0].removeprefix("#!").split()[-1]
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


MOST_LINES = 650


def python_files(*folders: str) -> list[Path]:
    """All Python files below these folders of the checkout."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file's code, for the tests below parsed once."""
    return ast.parse(path.read_text())


def test_no_file_is_longer_than_a_reader_keeps_in_mind() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in python_files("zerokit", "tools", "benchmarks", "tests")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


MOST_FUNCTION_LINES = 70
"""Of a function's body without its docstring: what fits a screen."""


def long_functions(path: Path) -> list[str]:
    """The functions of a file that do not fit a screen."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > MOST_FUNCTION_LINES:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}: {lines} lines")
    return found


def test_every_function_fits_a_screen() -> None:
    files = python_files("zerokit", "tools", "benchmarks")
    assert [name for path in files for name in long_functions(path)] == []


def undocumented(path: Path) -> list[str]:
    """Public functions, methods and classes of a file without a docstring; stubs of protocols aside."""
    found: list[str] = []

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                stub = isinstance(child.body[0], ast.Expr) and ast.unparse(child.body[0]) == "..."
                if child.name.startswith("_"):
                    continue
                if not stub and ast.get_docstring(child) is None:
                    found.append(f"{path.relative_to(ROOT)}:{child.lineno}: {child.name}")
                if isinstance(child, ast.ClassDef):
                    walk(child)

    walk(parsed(path))
    return found


def test_every_public_function_has_a_docstring() -> None:
    assert [name for path in python_files("zerokit", "tools") for name in undocumented(path)] == []


NO_BEGINNING = ("Those ", "That ", "Of ", "Its ", "Them ", "Said ", "By ", "As ", "In what ")
MOST_SUCH_BEGINNINGS = 97
"""How many there still are; it only shrinks."""


def docstrings_without_a_beginning(path: Path) -> list[str]:
    """Functions whose docstring begins with neither a verb nor a noun."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith(NO_BEGINNING)
    ]


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = [name for path in python_files("zerokit") for name in docstrings_without_a_beginning(path)]
    assert len(found) <= MOST_SUCH_BEGINNINGS, found


def test_every_package_says_what_it_holds() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("zerokit")
        if path.name == "__init__.py" and ast.get_docstring(parsed(path)) is None
    ]
    assert silent == []


CLI_ENTRY = {"run", "main", "cli", "commands", "command"}
"""What may be imported from the command line: how it is started, and its commands as click has them."""


def from_the_command_line(path: Path) -> list[str]:
    """What a file imports from ``zerokit.cli`` beyond its entry."""
    found = []
    text = path.read_text()
    for node in ast.walk(parsed(path)) if "zerokit.cli" in text else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[:2] == ["zerokit", "cli"]:
            found += [alias.name for alias in node.names if alias.name not in CLI_ENTRY]
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("zerokit.cli")]
    return [f"{path.relative_to(ROOT)}: {name}" for name in found]


def test_nobody_needs_more_of_the_command_line_than_to_start_it() -> None:
    others = [
        path
        for path in python_files("zerokit", "tools", "benchmarks", "tests")
        if ROOT / "zerokit/cli" not in path.parents
    ]
    assert [name for path in others for name in from_the_command_line(path)] == []


def test_no_helper_is_imported_from_a_test_file() -> None:
    found = []
    for path in python_files("tests", "benchmarks", "tools", "zerokit"):
        text = path.read_text()
        for node in ast.walk(parsed(path)) if "from tests" in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.startswith("test_")]
    assert found == []


# --- tests/map.yaml ------------------------------------------------------------------------------


def modules() -> set[str]:
    """All modules of the package with code, as paths without their ending."""
    package = ROOT / "zerokit"
    return {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if path.name != "__init__.py" or len(parsed(path).body) > 1
    }


def test_every_module_leads_to_its_tests_and_back() -> None:
    """A module has the unit test file of its name, or tests/map.yaml names the file that tests it."""
    listed = [module for served in tests_of.served_modules().values() for module in served]
    named = {module for module in modules() if tests_of.named_after(module).is_file()}
    assert sorted(modules() - named - set(listed)) == [], (
        "add its tests, or the file that has them to tests/map.yaml"
    )
    assert sorted(set(listed) - modules()) == [], "no such module"
    assert sorted(set(listed) & named) == [], "has a test file of its own name"
    assert sorted(module for module, times in Counter(listed).items() if times > 1) == []
    assert [file for file in tests_of.served_modules() if not (ROOT / "tests" / file).is_file()] == []


def test_every_unit_test_is_named_after_a_module() -> None:
    unit = ROOT / "tests" / "unit"
    names = {str(path.parent.relative_to(unit) / path.stem) for path in unit.rglob("test_*.py")}
    of_benchmarks = {name for name in names if name.startswith("benchmarks/")}
    known = {str(Path(module).parent / f"test_{Path(module).name}") for module in modules()}
    packages = {str(Path(module).parent) for module in modules()}
    of_packages = {f"{package}/test_{Path(package).name}" for package in packages}
    assert sorted(names - of_benchmarks - known - of_packages) == []


CITED = re.compile(r"[\w/]*\btest_\w+\.py\b")


def test_test_files_named_in_documents_exist() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.py")]
    found = {
        f"{document.relative_to(ROOT)}: {cited}"
        for document in documents
        for cited in CITED.findall(document.read_text())
        if "MODULE" not in cited  # of CONTRIBUTING: what a file is named after
        if not any(
            path.is_file()
            for pattern in (
                cited,
                f"tests/{cited}",
                f"tests/unit/{cited}",
                f"tests/*/{cited}",
                f"tests/unit/**/{cited}",
            )
            for path in ROOT.glob(pattern)
        )
    }
    assert sorted(found) == []
