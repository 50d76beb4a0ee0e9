"""What the benchmarks share: options of a command, rows of JSONL files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def options_of(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a JSONL file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
