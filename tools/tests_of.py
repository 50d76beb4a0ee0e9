"""Tests of modules: ``python -m tools.tests_of [zerokit/memory/card.py …]``.

A module's tests are in ``tests/unit/PACKAGE/test_MODULE.py``. For a module without such a file,
``tests/map.yaml`` names the file that tests it.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"


@functools.cache
def served_modules() -> dict[str, list[str]]:
    """Test files below ``tests``, and the modules below ``zerokit`` that they test beside their own."""
    served: dict[str, list[str]] = yaml.safe_load((TESTS / "map.yaml").read_text())
    return served


def named_after(module: str) -> Path:
    """Where the unit tests of a module stand if it has a file of its own; ``memory/card``."""
    path = Path(module)
    return TESTS / "unit" / path.parent / f"test_{path.name}.py"


def tests_of(module: str) -> list[Path]:
    """The files that test a module: that of its name, or those that the map names."""
    own = named_after(module)
    if own.is_file():
        return [own]
    return [TESTS / file for file, modules in served_modules().items() if module in modules]


def _changed() -> list[str]:
    command = ["git", "diff", "--name-only", "--diff-filter=d", "main", "--", "zerokit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if name.endswith(".py")]


def main() -> None:
    """Print the test files, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="default: what git says has changed since main")
    found: list[Path] = []
    for name in parser.parse_args().modules or _changed():
        module = str(Path(name).with_suffix("")).removeprefix("zerokit/")
        found += tests_of(module)
    for path in dict.fromkeys(found):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
