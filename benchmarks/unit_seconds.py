"""CPU seconds of each unit test file by itself: ``python -m benchmarks.unit_seconds [FILE…]``.

A changed module is to be tested in under 5 s: that counts the start of Python and pytest, the imports and
the tests of the file (``tests/unit/PACKAGE/test_MODULE.py``) with all processes that they start. CPU time
is shown because it depends less on what else the machine does; with nothing else to do, it is about the
time on the clock.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BAR_SECONDS = 5.0


@dataclass(frozen=True)
class Timed:
    """One file's tests in a process of their own."""

    path: Path
    cpu_seconds: float
    exit_code: int


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(path: Path) -> Timed:
    """Run one test file in a new process and count its CPU time, with that of its children."""
    before = _children_seconds()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    return Timed(path, _children_seconds() - before, done.returncode)


def main() -> int:
    """Time the files and print them, slowest first; 1 where a file takes longer than the bar or fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all below tests/unit but benchmarks")
    files = parser.parse_args().files or [
        path for path in sorted((ROOT / "tests/unit").rglob("test_*.py")) if path.parent.name != "benchmarks"
    ]
    results = []
    for number, path in enumerate(files, 1):
        results.append(timed(path.resolve()))
        print(f"{number}/{len(files)} {path}: {results[-1].cpu_seconds:.1f} s", file=sys.stderr)
    results.sort(key=lambda result: -result.cpu_seconds)
    print("| test file | CPU seconds |\n| --- | ---: |")
    for result in results:
        failed = f" (exit {result.exit_code})" if result.exit_code else ""
        print(f"| {result.path.relative_to(ROOT)}{failed} | {result.cpu_seconds:.1f} |")
    slow = sum(result.cpu_seconds > BAR_SECONDS for result in results)
    print(f"\n{len(results)} files; {slow} take more than {BAR_SECONDS:.0f} s")
    return int(slow > 0 or any(result.exit_code for result in results))


if __name__ == "__main__":
    sys.exit(main())
