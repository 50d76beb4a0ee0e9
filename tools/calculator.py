"""What the calculator's page runs in a browser: Pyodide, and zerokit with the libraries that a plan needs.

python -m tools.calculator    # fetches Pyodide into build/pyodide, once, through npm

The site has the page's own parts in ``docs/extra``; MkDocs calls :func:`on_post_build` for the rest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LOG = logging.getLogger("mkdocs.hooks.calculator")
PYODIDE = ROOT / "build" / "pyodide"
VERSION = "314.0.7"
_SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
_PARTS = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
LIBRARIES = ("click", "yaml", "jinja2", "markupsafe", "typing_extensions")
_LEFT_OUT = ("rehearsal", "trace", "doctor", "tuner", "snapshots")
"""Rooms of which no plan without a script loads anything."""


def fetch(folder: Path = PYODIDE) -> None:
    """Fetch Pyodide. Raises CalledProcessError: npm fails; ValueError: it is another file."""
    with tempfile.TemporaryDirectory() as name:
        command = ["npm", "pack", "--silent", f"pyodide@{VERSION}"]
        archive = (
            Path(name)
            / subprocess.run(command, cwd=name, check=True, capture_output=True, text=True).stdout.strip()
        )
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != _SHA256:
            raise ValueError(f"pyodide {VERSION}: its SHA-256 is {found}, not {_SHA256}")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as packed:
            for part in _PARTS:
                source = packed.extractfile(f"package/{part}")
                assert source is not None
                (folder / part).write_bytes(source.read())


def on_post_build(config: Mapping[str, Any]) -> None:
    """Put what the page loads beside the site's pages, as MkDocs' hook; nothing where it was not fetched."""
    if not (PYODIDE / _PARTS[-1]).is_file():
        _LOG.info("the calculator has no planner: python -m tools.calculator fetches Pyodide")
        return
    target = Path(config["site_dir"]) / "calculator"
    target.mkdir(exist_ok=True)
    for part in _PARTS:
        shutil.copyfile(PYODIDE / part, target / part)
    with zipfile.ZipFile(target / "zerokit.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted((ROOT / "zerokit").rglob("*")):
            inner = path.relative_to(ROOT)
            if path.is_file() and path.suffix != ".pyc" and inner.parts[1] not in _LEFT_OUT:
                packed.write(path, inner)
        for name in ("templates", "recipes"):
            for path in sorted((ROOT / name).iterdir()):
                packed.write(path, Path("zerokit", "_data") / path.relative_to(ROOT))
        for library in LIBRARIES:
            spec = importlib.util.find_spec(library)
            assert spec is not None and spec.origin is not None
            origin = Path(spec.origin)
            files = [origin] if origin.name != "__init__.py" else sorted(origin.parent.rglob("*.py"))
            base = origin.parent if origin.name != "__init__.py" else origin.parents[1]
            for path in files:
                packed.write(path, path.relative_to(base))


if __name__ == "__main__":
    fetch()
    sys.exit(0)
