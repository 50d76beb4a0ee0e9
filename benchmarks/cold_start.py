"""What `zerokit plan` costs from the shell's point of view: the whole process, cold.

    python benchmarks/cold_start.py [--runs 10] [--bar 4]

CPU time, since wall time on a shared machine says more about its other users; and as a multiple of what
Python takes to import click and yaml, run in turn. Prints a Markdown table; ends with 1 if the first
command's median is above the bar. Each run is a new process in a new, empty folder; one run before them
warms the file cache and the bytecode, as a second command on any machine finds it.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

YARDSTICK = [sys.executable, "-c", "import click, yaml"]
COMMANDS = (
    ["plan", "--params", "70b", "--gpus", "8"],
    ["plan", "--params", "70b", "--gpus", "8", "--gpu", "h100-sxm-80gb"],
    ["plan", "--params", "70b", "--gpus", "8", "--gpu", "h100-sxm-80gb", "--json"],
    ["--version"],
)


def cpu_seconds() -> float:
    """User and system time of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_of(command: list[str]) -> float:
    """CPU time of one process. Raises SystemExit: the command failed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        before = cpu_seconds()
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        used = cpu_seconds() - before
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="processes per command (default: 10)")
    parser.add_argument("--bar", type=float, default=4.0, help="times `import click, yaml` (default: 4)")
    args = parser.parse_args()

    zerokit = str(Path(sys.executable).parent / "zerokit")
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {args.runs} runs, seconds of CPU\n")
    print(
        "| command | median | least | `import click, yaml` | times as much |\n| --- | --- | --- | --- | --- |"
    )
    ratios = []
    for arguments in COMMANDS:
        seconds_of(YARDSTICK), seconds_of([zerokit, *arguments])
        pairs = [(seconds_of(YARDSTICK), seconds_of([zerokit, *arguments])) for _ in range(args.runs)]
        yardstick, own = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratios.append(own / yardstick)
        print(
            f"| `zerokit {' '.join(arguments)}` | {own:.3f} | {min(time for _, time in pairs):.3f} "
            f"| {yardstick:.3f} | {ratios[-1]:.1f} |"
        )
    if ratios[0] > args.bar:
        raise SystemExit(f"\n{ratios[0]:.1f} times `import click, yaml` is above the bar of {args.bar:g}")


if __name__ == "__main__":
    main()
