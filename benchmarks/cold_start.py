"""How long `zerokit plan` takes from the shell's point of view: the whole process, cold.

    python benchmarks/cold_start.py [--runs 10] [--bar 0.35]

Prints a Markdown table; ends with 1 if the median is above the bar. Each run is a new
process in a new, empty folder; one run before them warms the file cache, as a second
command on any machine finds it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = (
    ["plan", "--params", "70b", "--gpus", "8"],
    ["plan", "--params", "70b", "--gpus", "8", "--gpu", "h100-sxm-80gb"],
    ["plan", "--params", "70b", "--gpus", "8", "--gpu", "h100-sxm-80gb", "--json"],
    ["--version"],
)


def seconds_of(command: list[str]) -> float:
    """Wall time of one process.

    Raises:
        SystemExit: the command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        elapsed = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="processes per command (default: 10)")
    parser.add_argument("--bar", type=float, default=0.35, help="seconds; for the first command's median")
    args = parser.parse_args()

    zerokit = str(Path(sys.executable).parent / "zerokit")
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {args.runs} runs, seconds\n")
    print("| command | median | fastest | slowest |\n| --- | --- | --- | --- |")
    medians = []
    for arguments in COMMANDS:
        seconds_of([zerokit, *arguments])
        times = [seconds_of([zerokit, *arguments]) for _ in range(args.runs)]
        medians.append(statistics.median(times))
        print(
            f"| `zerokit {' '.join(arguments)}` | {medians[-1]:.3f} | {min(times):.3f} | {max(times):.3f} |"
        )
    if medians[0] > args.bar:
        raise SystemExit(f"\n{medians[0]:.3f} s is above the bar of {args.bar} s")


if __name__ == "__main__":
    main()
