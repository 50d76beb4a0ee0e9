"""What host and GPU do during a few steps of a script: PyTorch's profiler, kept small.

``benchmarks.script_clock`` starts it inside the script, ``benchmarks.script_times --traces`` collects it: one
line a rank, JSON, compressed. ``python -m benchmarks.script_trace TRACES.jsonl.gz`` summarises them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset")
"""Chrome's categories that are kept."""
TRACED_STEPS = 3
PHASE = "phase:"
"""Begins the names of annotations around the engine's calls."""


class Trace:
    """Of some steps of one process."""

    def __init__(self, path: Path) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._path = path
        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profile.start()

    def stop(self, about: dict[str, Any]) -> None:
        """End it and write what is kept of it, beside ``about``."""
        self._profile.stop()
        handle, name = tempfile.mkstemp(suffix=".json", dir=self._path.parent)
        os.close(handle)
        try:
            self._profile.export_chrome_trace(name)
            with Path(name).open(encoding="utf-8") as file:
                kept = compact(json.load(file))
        finally:
            Path(name).unlink()
        self._path.write_text(json.dumps({**about, **kept}), encoding="utf-8")


def compact(trace: dict[str, Any]) -> dict[str, Any]:
    """Events in the order of their begin.

    Returns:
        ``names`` and ``events``: each ``[kind, name, lane, begin, length, correlation]``; kind of
        :data:`KINDS` and name by their index, lane a thread or a stream, times in tenths of microseconds
        from the first event on, correlation what joins a launch and its kernel (0: none).
    """
    found = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") in KINDS]
    found.sort(key=lambda event: float(event["ts"]))
    began = float(found[0]["ts"]) if found else 0.0
    names: dict[str, int] = {}
    lanes: dict[Any, int] = {}
    events = []
    for event in found:
        arguments = event.get("args", {})
        lane = ("stream", arguments["stream"]) if "stream" in arguments else ("thread", event["tid"])
        on_gpu = event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
        name = event["name"].split("(")[0][:60] if on_gpu else event["name"][:60]
        events.append([
            KINDS.index(event["cat"]),
            names.setdefault(name, len(names)),
            lanes.setdefault(lane if on_gpu else ("thread", event["tid"]), len(lanes)),
            round(10 * (float(event["ts"]) - began)),
            round(10 * float(event.get("dur", 0.0))),
            int(arguments.get("correlation", 0)),
        ])  # fmt: skip
    return {"names": list(names), "lanes": [list(lane) for lane in lanes], "events": events}


def read(path: Path) -> list[dict[str, Any]]:
    """The traces of a file that ``script_times`` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def spans(trace: dict[str, Any]) -> tuple[list[Span], dict[str, list[tuple[float, float]]]]:
    """What each thread did outermost, and when the engine's calls ran. Seconds from the trace's begin.

    A span's ``runtime`` is the part of it in the CUDA runtime; what lies between spans of a thread is Python.
    """
    names, lanes = trace["names"], trace["lanes"]
    phases: dict[str, list[tuple[float, float]]] = {}
    outermost: dict[int, Span] = {}
    found: list[Span] = []
    for kind, name, lane, begin, length, _ in trace["events"]:
        first, last = begin / 1e7, (begin + length) / 1e7
        called = names[name]
        if KINDS[kind] == "user_annotation":
            if called.startswith(PHASE):
                phases.setdefault(called.removeprefix(PHASE), []).append((first, last))
            continue
        if lanes[lane][0] != "thread":
            found.append(Span("gpu", called, lane, first, last - first))
            continue
        runtime = KINDS[kind].startswith("cuda_")
        outer = outermost.get(lane)
        if outer is not None and first < outer.begin + outer.seconds:
            if runtime:
                outer.runtime += last - first
                outer.calls += 1
            continue
        outermost[lane] = span = Span("runtime" if runtime else "operator", called, lane, first, last - first)
        found.append(span)
    return found, phases


@dataclass(slots=True)
class Span:
    """Something that one lane did. ``kind``: ``operator``, ``runtime`` or ``gpu``; seconds."""

    kind: str
    name: str
    lane: int
    begin: float
    seconds: float
    runtime: float = 0.0
    calls: int = 0


def summary(trace: dict[str, Any]) -> dict[str, Any]:
    """Seconds a step: of each thread in operators, the runtime and Python between them; of the GPU."""
    found, phases = spans(trace)
    ends = sorted(last for _, last in phases.get("step", ()))
    began, ended = (ends[0], ends[-1]) if len(ends) > 1 else (0.0, max(event.begin for event in found))
    steps = max(1, len(ends) - 1)
    inside = [event for event in found if began <= event.begin < ended]
    lanes: dict[str, Any] = {}
    for lane in dict.fromkeys(event.lane for event in inside):
        mine = [event for event in inside if event.lane == lane]
        kind, number = trace["lanes"][lane]
        kinds: dict[str, list[float]] = {}
        for event in mine:
            counted = kinds.setdefault(f"{event.kind} {event.name}", [0, 0.0, 0.0, 0])
            counted[0] += 1
            counted[1] += event.seconds
            counted[2] += event.runtime
            counted[3] += event.calls
        largest = sorted(kinds.items(), key=lambda item: -item[1][1])[:25]
        lanes[f"{kind} {number}"] = {
            "spans": len(mine) / steps,
            "busy": sum(event.seconds for event in mine) / steps,
            "largest": {name: [seconds / steps for seconds in counted] for name, counted in largest},
        }
    took = {
        name: sum(b - a for a, b in phase if began <= a < ended) / steps for name, phase in phases.items()
    }
    return {"name": trace.get("name"), "rank": trace.get("rank"), "step": (ended - began) / steps,
            "phases": took, "lanes": lanes}  # fmt: skip


def main() -> None:
    """Print the summary of each trace of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    for trace in read(parser.parse_args().traces):
        print(json.dumps(summary(trace), indent=1))


if __name__ == "__main__":
    main()
