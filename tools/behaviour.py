"""What zerokit answers, recorded before a change that must not change it, and compared after:

    python -m tools.behaviour record before.json
    python -m tools.behaviour compare before.json after.json   # 1 when answers differ

Plans, estimates and sizes of the recipes and of random requests, checks of the corpus, dry runs of the tests'
scripts, and with ``--rehearsals`` what they rehearse as. Each command runs in a process of its own, in a copy
of the tests' files; times, dates and folders are left out. 380 answers took 6.3 minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.random_requests import command_line, random_request

ROOT = Path(__file__).resolve().parents[1]
_VARYING = {"seconds", "cpu_seconds", "created", "time", "versions", "host_factor"}
_DATES = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?|/tmp/[\w./-]+|\d+(\.\d+)? (s|min)\b|after [\d.]+ s"
)
_ON_GPU = ("--gpus", "2", "--gpu", "h100-sxm-80gb")


def commands(rehearsals: bool) -> Iterator[list[str]]:
    """The arguments of zerokit, one command after the other."""
    for recipe in sorted((ROOT / "recipes").glob("*.yaml")):
        yield ["plan", "--recipe", recipe.stem, "--json"]
    for seed in range(25):
        request = random_request(Random(seed))
        words = command_line(request)[4:]
        yield ["plan", *words, "--json"]
        yield ["estimate", *words, "--zero", "2", "--json"]
        yield ["size", *words, "--json"]
    for file in sorted((ROOT / "tests/corpus").rglob("*.*")):
        yield ["check", str(file.relative_to(ROOT)), "--notes", "--json"]
    scripts = [*(ROOT / "tests/scripts").glob("*.py"), *(ROOT / "tests/rehearsal/scripts").glob("*.py")]
    for script in sorted(scripts):
        name = str(script.relative_to(ROOT))
        yield ["launch", "--dry-run", "--device", "cpu", "--num-ranks", "2", name]
        yield ["launch", "--dry-run", "--plan", "plan", "--accept-mismatch", name]
        if rehearsals:
            yield ["rehearse", *_ON_GPU, "--json", "-q", name]


def answer(words: list[str], folder: Path) -> dict[str, Any]:
    """Exit code and output of one command, without what differs from run to run."""
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", *words], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "80"},
    )  # fmt: skip
    try:
        out: Any = _steady(json.loads(done.stdout))
    except ValueError:
        out = _DATES.sub("_", done.stdout)
    return {"code": done.returncode, "out": out, "err": _DATES.sub("_", done.stderr)}


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(one) for name, one in value.items() if name not in _VARYING}
    if isinstance(value, list):
        return [_steady(one) for one in value]
    return _DATES.sub("_", value) if isinstance(value, str) else value


def record(path: Path, rehearsals: bool) -> None:
    """Run all commands and write their answers."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        answer(["plan", "--params", "350m", *_ON_GPU, "--out", "plan"], folder)
        answers = {" ".join(words): answer(words, folder) for words in commands(rehearsals)}
    path.write_text(json.dumps(answers, indent=1, sort_keys=True))
    print(f"{len(answers)} answers in {path}")


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Where two answers differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from differences(before.get(name), after.get(name), f"{place}.{name}" if place else name)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {str(before)[:200]!r} -> {str(after)[:200]!r}"


def main() -> None:
    """Record, or compare two records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rehearsals", action="store_true")
    asked = parser.parse_args()
    if asked.action == "record":
        record(asked.files[0], asked.rehearsals)
        return
    found = list(differences(*(json.loads(file.read_text()) for file in asked.files)))
    print("\n".join(found) or "alike")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
