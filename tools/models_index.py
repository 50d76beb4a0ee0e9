"""Writes ``models/index.json`` from the model files: ``python -m tools.models_index``."""

from __future__ import annotations

import json
import sys

from zerokit.catalog import models


def text() -> str:
    """What the index file must contain, given the model files."""
    entries = [models.summary(models.load(name)) for name in models.names()]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return f"[\n{lines}\n]\n"


def main() -> None:
    """Write the index file."""
    models.INDEX.write_text(text(), encoding="utf-8")
    print(f"{models.INDEX}: {len(models.names())} models", file=sys.stderr)


if __name__ == "__main__":
    main()
