"""Time and memory to explain a snapshot of a gigabyte: the steps of a recorded one, repeated.

``python -m benchmarks.snapshots.large RECORDED.pickle FOLDER [--bytes 1000000000]`` writes the file, explains
it in a process of its own and prints seconds and the largest resident memory. Bars: 60 s and 4 GiB. On two
busy cores with Python 3.11, a gigabyte of ``plain`` (C++ stacks, 5.7 million events) took 33 s and 1.8 GiB,
one of ``lora`` (Python's stacks, 10.6 million) 44 s and 2.6 GiB.
"""

from __future__ import annotations

import argparse
import pickle
import pickletools
import resource
import subprocess
import sys
import time
from pathlib import Path


def enlarge(recorded: Path, large: Path, size_bytes: int) -> int:
    """Write a snapshot in which the last whole step of a recorded one is repeated; count its events."""
    snapshot = pickle.loads(recorded.read_bytes())  # noqa: S301
    events = snapshot["device_traces"][0]
    first, last = _step(events)
    data, starts = _events(pickle.dumps(snapshot, 4), len(snapshot["segments"]))
    step = data[starts[first] : starts[last]] + b"e("
    times = (size_bytes - len(data)) // len(step)
    with large.open("wb") as file:
        file.write(data[: starts[last]] + b"e(")
        for _ in range(times):
            file.write(step)
        file.write(data[starts[last] :])
    return len(events) + times * (last - first)


def _step(events: list[dict[str, int | str]]) -> tuple[int, int]:
    """The longest stretch of events after which the same is live as before, in the second half."""
    live: set[int | str] = set()
    seen: dict[frozenset[int | str], int] = {}
    best = (0, 0)
    for number, event in enumerate(events):
        if number > len(events) // 2:
            first = seen.setdefault(frozenset(live), number)
            best = max(best, (first, number), key=lambda one: one[1] - one[0])
        if event["action"] == "alloc":
            live.add(event["addr"])
        elif event["action"] == "free_requested":
            live.discard(event["addr"])
    return best


def _events(data: bytes, segments: int) -> tuple[bytes, list[int]]:
    """The pickle without frames, and where each event begins."""
    plain = bytearray(data[:2])
    begun: list[int] = []
    starts: list[int] = []
    ops = list(pickletools.genops(data))[1:]
    ends = [at for _, _, at in ops[1:] if at is not None] + [len(data)]
    for (op, _, at), end in zip(ops, ends, strict=True):
        if op.name == "FRAME":
            continue
        if op.name == "EMPTY_DICT":
            begun.append(len(plain))
        elif op.name == "SETITEMS" and len(begun) == 2:
            starts.append(begun[-1])
        plain += data[at:end]
        if op.name == "SETITEMS":
            begun.pop()
    return bytes(plain), starts[segments:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, default=10**9)
    options = parser.parse_args()
    large = options.folder / "large.pickle"
    events = enlarge(options.recorded, large, options.bytes)
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "zerokit", "explain", str(large)], check=True)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(f"{large.stat().st_size / 1e9:.2f} GB, {events:,} events: {seconds:.0f} s, {peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
