"""The console blocks of the README and of the documentation are what the commands really print.

The blocks of a page run in order in one temporary folder. Between the shown lines, a line with only
an ellipsis stands for any number of lines. Numbers may differ by a tenth, so that a
refined model does not outdate the page but a changed one does; how long a command itself
took is not compared. In a block behind the comment ``<!-- figures vary -->`` figures may be
any, and so may the phase that a peak fell in. Standard error counts as output. A page that trains runs with
``-m slow``: ``tests/test_demo.py`` plans, trains and reports the same model everywhere.

    python tests/test_readme.py --write      puts the present output into the blocks
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.pages import AXOLOTL
from zerokit.errors import ExitCode
from zerokit.fields import plain
from zerokit.planner.checking import CheckResult
from zerokit.planner.conversion import Conversion
from zerokit.planner.counterparts import Change
from zerokit.planner.documents import Estimate, PlannedStrategy, Read
from zerokit.planner.options import BY_NAME, ELSEWHERE, OPTIONS
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.size_result import FewestGpus, SizeResult

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "```console" in page.read_text()))
OPTIONS_PAGE = DOCS / "options.md"
VARY = "<!-- figures vary -->"
BLOCK = re.compile(rf"(?P<vary>{VARY}\n)?```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,_]*(?:\.\d+)?")
WALL_TIME = re.compile(r"\bin \d+\.\d+ s$")
DATE = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b")
MEASURED = (
    (re.compile(r"\b(load|init|forward|backward|step|eval|generate|save|other)\b(?! time)"), "PHASE"),
    (re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?"), "0"),
    (re.compile(r"\b0 (ms|s|min|h)\b"), "0 s"),
)
STRAGGLER = re.compile(r"^problem: the others wait for rank.*?(?=^Outcome)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r", with 1 problem named\s+above")
EXIT = re.compile(r"\s+# exit code (\d+)$")
TOLERANCE = 0.1


@dataclass(frozen=True)
class Example:
    """One command of a block, and the output shown below it."""

    page: Path
    number: int
    command: str
    exit_code: int
    shown: tuple[str, ...]
    vary: bool


def every_example() -> list[Example]:
    return [example for page in PAGES for example in examples(page)]


def examples(page: Path) -> list[Example]:
    found: list[Example] = []
    for block in BLOCK.finditer(page.read_text()):
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            code = EXIT.search(command)
            found.append(
                Example(
                    page=page,
                    number=len(found),
                    command=EXIT.sub("", command),
                    exit_code=int(code[1]) if code else 0,
                    shown=tuple(shown),
                    vary=bool(block["vary"]),
                )
            )
    return found


def prepare(folder: Path) -> None:
    """What the page says is there: a checkout's examples, and somebody's flawed configuration."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "train.yaml").write_text(AXOLOTL)
    (folder / "ds_config.json").write_text(
        "{\n"
        '  "train_micro_batch_size_per_gpu": 1,\n'
        '  "bf16": {"enabled": true},\n'
        '  "gradient_cliping": 1.0,\n'
        '  "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}\n'
        "}\n"
    )


def run(example: Example, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *args = shlex.split(example.command)
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    # under pytest a child that sees the variable may take itself for a part of the test
    environment.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        [Path(sys.executable).parent / program, *args] if program == "zerokit" else [program, *args],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    for folder_name in (str(folder.resolve()), str(ROOT)):
        done.stdout = done.stdout.replace(folder_name, "~")
    done.stdout = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-1", done.stdout)
    return done


def words(line: str) -> str:
    """The line without what layout and the machine's speed decide."""
    line = DATE.sub("some day", re.sub("─+", "─", " ".join(line.split())))
    return WALL_TIME.sub("in a moment", line)


def without_figures(line: str) -> str:
    for pattern, word in MEASURED:
        line = pattern.sub(word, line)
    return line


def alike(shown: str, real: str, *, vary: bool) -> bool:
    """Whether the lines say the same, figures compared as the module's head tells."""
    shown, real = words(shown), words(real)
    if vary:
        return without_figures(shown) == without_figures(real)
    if NUMBER.sub("0", shown) != NUMBER.sub("0", real):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(real), strict=True)
    return all(
        abs(a - b) <= TOLERANCE * max(a, b)
        for a, b in ((float(re.sub("[,_]", "", x)), float(re.sub("[,_]", "", y))) for x, y in pairs)
    )


def difference(example: Example, output: str) -> str | None:
    """The first shown line that the output lacks, in order; None when all are there."""
    if example.vary and STRAGGLER.search(output):  # cores that others use too may hold one rank up
        output = NAMED.sub("", STRAGGLER.sub("", output))
    real = [line for line in output.splitlines() if line.strip()]
    position, gap = 0, False
    for line in (line for line in example.shown if line.strip()):
        if line.strip() in ("…", "..."):
            gap = True
            continue
        stop = len(real) if gap else position + 1
        for at in range(position, min(stop, len(real))):
            if alike(line, real[at], vary=example.vary):
                position, gap = at + 1, False
                break
        else:
            return line
    if position < len(real) and not gap and example.shown:
        return f"(nothing more) but there is: {real[position]}"
    return None


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[Path, Path]]:
    """A folder for each page's commands, with a path short enough for a line of 80 columns."""
    with tempfile.TemporaryDirectory(prefix="zk-") as base:
        found = {page: Path(base) / str(number) for number, page in enumerate(PAGES)}
        for folder in found.values():
            folder.mkdir()
            prepare(folder)
        yield found


def test_the_pages_have_examples() -> None:
    commands = {example.command.split()[1] for example in every_example()}
    assert commands >= {"plan", "estimate", "launch", "report", "check", "size", "tune"}


def trains(page: Path) -> bool:
    commands = [example.command for example in examples(page)]
    return any("zerokit launch" in command and "--dry-run" not in command for command in commands)


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, marks=pytest.mark.slow if trains(example.page) else ())
        for example in every_example()
    ],
    ids=lambda example: f"{example.page.stem} {example.number}: {example.command}",
)
def test_example(example: Example, folders: dict[Path, Path]) -> None:
    done = run(example, folders[example.page])
    assert done.returncode == example.exit_code, done.stdout
    missing = difference(example, done.stdout)
    assert missing is None, f"{example.page} shows:\n{missing}\nThe command printed:\n{done.stdout}"


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        (["a 1.00", "b"], "a 1.05\nb\n", True),
        (["a 1.00", "b"], "a 1.25\nb\n", False),
        (["a", "…", "c"], "a\nb\nb\nc\n", True),
        (["a", "c"], "a\nb\nc\n", False),
        (["a", "…"], "a\nb\n", True),
        (["a"], "a\nb\n", False),
        (["70,553 M"], "70,554  M\n", True),
        (["8 × h200"], "8 × h100\n", False),
        (["12 candidates in 0.10 s"], "12 candidates in 3.52 s\n", True),
    ],
)
def test_the_comparison_itself(shown: list[str], output: str, same: bool) -> None:
    example = Example(page=OPTIONS_PAGE, number=0, command="", exit_code=0, shown=tuple(shown), vary=False)
    assert (difference(example, output) is None) == same


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("0 node-1 finished 0.5 GiB step", "1  node-1  finished  2.5 GiB  backward", True),
        ("peak 0.5 GiB -38.2 %", "peak 2.5 GiB +8.0 %", True),
        ("step time 500 ms", "step time 3.1 s", True),
        ("0 node-1 finished 0.5 GiB step", "0 node-1 failed 0.5 GiB step", False),
    ],
)
def test_the_comparison_of_measured_lines(shown: str, output: str, same: bool) -> None:
    assert alike(shown, output, vary=True) == same


SCRIPT = re.compile(
    r"<!-- (?P<path>examples/\S+\.py) -->\n```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def test_scripts_on_pages_are_those_in_the_examples() -> None:
    shown = {found["path"]: found["text"] for page in PAGES for found in SCRIPT.finditer(page.read_text())}
    assert shown, "no page shows a script"
    for path, text in shown.items():
        assert text == (ROOT / path).read_text(), f"{path}: run python tests/test_readme.py --write"


OPTIONS_TABLE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end of options -->)", re.DOTALL)


def options_table() -> str:
    """The arguments of a plan, out of the planner's table of them."""
    lines = ["| argument | option | value | meaning |", "| --- | --- | --- | --- |"]
    for option in OPTIONS:
        value = option.metavar.replace("|", " \\| ") or "(a switch)"
        mark = " \\*" if option.name in ELSEWHERE["check"] else ""
        name = f"`{option.name}`{mark}"
        lines.append(f"| {name} | `{option.option}` | {value} | {plain(option.help)} |")
    return "\n".join(lines) + "\n"


DIFFERING_TABLE = re.compile(
    r"(?<=<!-- differing options -->\n).*?(?=<!-- end of differing options -->)", re.DOTALL
)


def differing_table() -> str:
    """What is refused, or said otherwise, by a command that shares the arguments of a plan."""
    lines = ["| command | option | there |", "| --- | --- | --- |"]
    for command, texts in ELSEWHERE.items():
        if command == "check":
            continue
        refused = [BY_NAME[name].option for name, text in texts.items() if text is None]
        lines.append(f"| `{command}` | {', '.join(f'`{option}`' for option in refused)} | refused |")
        lines += [
            f"| `{command}` | `{BY_NAME[name].option}` | {plain(text)} |"
            for name, text in texts.items()
            if text is not None
        ]
    return "\n".join(lines) + "\n"


EXIT_CODES_TABLE = re.compile(r"(?<=<!-- exit codes -->\n).*?(?=<!-- end of exit codes -->)", re.DOTALL)
EXIT_CODES_LINE = re.compile(r"^Exit codes: .*(?=, 128\+n ended by signal n)", re.MULTILINE)


def exit_codes_table() -> str:
    """The rows of ``ExitCode``."""
    rows = "".join(f"| {code.value} | {code.text} |\n" for code in ExitCode)
    return f"| code | meaning |\n| --- | --- |\n{rows}| 128+n | ended by signal n |\n"


def exit_codes_line() -> str:
    """The same in a line, for agents."""
    return "Exit codes: " + ", ".join(f"{code.value} {code.short}" for code in ExitCode)


RESULTS_TABLES = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
RESULTS = {
    "A plan": PlanResult, "A strategy (`chosen`, or one of `strategies`)": PlannedStrategy,
    "An estimate (`zerokit.estimate()`, or a strategy's `estimate`)": Estimate,
    "Sizes": SizeResult, "One of `sizes`": FewestGpus, "A check": CheckResult,
    "A conversion": Conversion, "One of `changes`": Change,
}  # fmt: skip
INSIDE = {"plan", "planned", "candidate", "strategy", "job", "cluster", "script", "notes", "timed", "misfit",
          "parameters", "to_fix", "file_config", "is_sure"}  # fmt: skip
"""Attributes of results that are the program's own."""
ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.+?)(?=^    \w+(?:, \w+)*: |\Z)", re.MULTILINE | re.DOTALL)


def told(kind: type) -> Iterator[tuple[str, str]]:
    """Attributes of a result and what they hold, by the docstrings."""
    described = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    documented = {
        name: text for names, text in ATTRIBUTE.findall(described) for name in names.split(", ")
    } | {
        name: inspect.getdoc(value) or ""
        for name, value in vars(kind).items()
        if isinstance(value, Read | property | cached_property)
    }
    own = [field.name for field in fields(kind)]
    for name in sorted(documented, key=lambda name: (name in own, list(documented).index(name))):
        if not name.startswith("_") and name not in INSIDE:
            yield name, " ".join(documented[name].replace("``", "`").split()).removesuffix(".")


def results_tables() -> str:
    """What results hold, by the docstrings of their classes."""
    tables = []
    for title, kind in RESULTS.items():
        rows = "".join(f"| `{name}` | {text[0].upper()}{text[1:]} |\n" for name, text in told(kind))
        tables.append(f"\n### {title}\n\n| | |\n| --- | --- |\n{rows}")
    return "".join(tables) + "\n"


TABLES = [
    (OPTIONS_PAGE, OPTIONS_TABLE, options_table), (OPTIONS_PAGE, DIFFERING_TABLE, differing_table),
    (DOCS / "exit-codes.md", EXIT_CODES_TABLE, exit_codes_table),
    (ROOT / "SKILL.md", EXIT_CODES_LINE, exit_codes_line),
    (DOCS / "python.md", RESULTS_TABLES, results_tables),
]  # fmt: skip


@pytest.mark.parametrize(("page", "pattern", "table"), TABLES)
def test_tables_on_pages_are_the_programs(
    page: Path, pattern: re.Pattern[str], table: Callable[[], str]
) -> None:
    found = pattern.search(page.read_text())
    assert found is not None and found[0] == table(), "run: python tests/test_readme.py --write"


def rewrite() -> None:
    """Replace the output of every block that shows all of it; those with an ellipsis stay."""
    for page, pattern, table in TABLES:
        page.write_text(pattern.sub(lambda _, table=table: table(), page.read_text()))  # type: ignore[misc]
    for page in PAGES:
        rewrite_page(page)


def rewrite_page(page: Path) -> None:
    pending = iter(examples(page))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)

        def fresh(block: re.Match[str]) -> str:
            lines = []
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                example = next(pending)
                done = run(example, folder)
                if done.returncode != example.exit_code:
                    print(f"$ {example.command}: exit code {done.returncode}\n{done.stdout}", file=sys.stderr)
                head = part.split("\n")[0]
                elided = any(line.strip() in ("…", "...") for line in example.shown)
                shown = example.shown if elided else done.stdout.splitlines()
                lines += [f"$ {head}", *(line.rstrip() for line in shown)]
                if elided and (missing := difference(example, done.stdout)):
                    print(f"$ {example.command}: write by hand: {missing}", file=sys.stderr)
            return (block["vary"] or "") + "```console\n" + "\n".join(lines) + "\n```"

        text = SCRIPT.sub(
            lambda found: f"<!-- {found['path']} -->\n```python\n{(ROOT / found['path']).read_text()}```",
            page.read_text(),
        )
        page.write_text(BLOCK.sub(fresh, text))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    rewrite()
