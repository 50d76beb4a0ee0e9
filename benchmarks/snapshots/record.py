"""Records the snapshots of all jobs, each in a process of its own, and packs them into one archive.

``python -m benchmarks.snapshots.record FOLDER ARCHIVE.tar.xz`` needs a GPU, DeepSpeed, PEFT and Transformers.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.snapshots.jobs import JOBS


def record(name: str, folder: Path, device: str, seconds: float) -> str:
    """Run one job, and say how it ended."""
    command = [sys.executable, "-m", "benchmarks.snapshots.jobs", name, str(folder), "--device", device]
    environment = dict(os.environ, TORCH_SYMBOLIZE_MODE="dladdr", OMP_NUM_THREADS="2")
    if name == "expandable":
        environment |= dict.fromkeys(
            ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"
        )
    started = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        try:
            rc = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            rc = 124
    tail = "" if rc == 0 else "\n" + (folder / f"{name}.log").read_text()[-1500:]
    return f"{name}: {rc} in {time.monotonic() - started:.0f} s{tail}"


def scopes(path: Path) -> dict[str, dict[int, str]]:
    """Name the class and function of each Python line that a snapshot's stacks hold: file, line, qualified
    name."""
    snapshot = pickle.loads(path.read_bytes())  # noqa: S301  its own
    records = [e for trace in snapshot["device_traces"] for e in trace]
    records += [b for segment in snapshot["segments"] for b in segment["blocks"]]
    lines: dict[str, set[int]] = {}
    for record in records:
        for frame in record.get("frames", ()):
            lines.setdefault(frame["filename"], set()).add(frame["line"])
    names: dict[str, dict[int, str]] = {}
    for file, wanted in lines.items():
        if not file.endswith(".py") or not Path(file).is_file():
            continue
        found = names.setdefault(file, {})

        def walk(
            node: ast.AST, outer: tuple[str, ...], wanted: set[int] = wanted, found: Any = found
        ) -> None:
            for child in ast.iter_child_nodes(node):
                inner = outer
                if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    inner = (*outer, child.name)
                    for line in wanted & set(range(child.lineno, (child.end_lineno or child.lineno) + 1)):
                        found[line] = ".".join(inner)
                walk(child, inner)

        walk(ast.parse(Path(file).read_text()), ())
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.at_once) as pool:
        runs = [pool.submit(record, name, options.folder, options.device, options.seconds) for name in JOBS]
        for run in runs:
            print(run.result(), flush=True)
    for path in options.folder.glob("*.pickle"):
        path.with_suffix(".scopes.json").write_text(json.dumps(scopes(path), indent=0))
    with tarfile.open(options.archive, "w:xz") as archive:
        for path in sorted(options.folder.glob("*.[plj]*")):
            archive.add(path, path.name)


if __name__ == "__main__":
    main()
