"""What host and GPU do during a few steps of a script: PyTorch's profiler, kept small.

``benchmarks.script_clock`` starts it inside the script, ``benchmarks.script_times --traces`` collects it: one
line a rank, JSON, compressed.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

KINDS = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset")
"""Chrome's categories that are kept."""
TRACED_STEPS = 3
PHASE = "phase:"
"""Begins the names of annotations around the engine's calls."""


class Trace:
    """Of some steps of one process."""

    def __init__(self, place: Path) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._place = place
        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profile.start()

    def stop(self, about: dict[str, Any]) -> None:
        """End it and write what is kept of it, beside ``about``."""
        self._profile.stop()
        handle, name = tempfile.mkstemp(suffix=".json", dir=self._place.parent)
        os.close(handle)
        try:
            self._profile.export_chrome_trace(name)
            with open(name, encoding="utf-8") as file:
                kept = compact(json.load(file))
        finally:
            os.unlink(name)
        self._place.write_text(json.dumps({**about, **kept}), encoding="utf-8")


def compact(trace: dict[str, Any]) -> dict[str, Any]:
    """Events in the order of their begin.

    Returns:
        ``names`` and ``events``: each ``[kind, name, lane, begin, length, correlation]``; kind of
        :data:`KINDS` and name by their index, lane a thread or a stream, times in tenths of microseconds
        from the first event on, correlation what joins a launch and its kernel (0: none).
    """
    found = [each for each in trace["traceEvents"] if each.get("ph") == "X" and each.get("cat") in KINDS]
    found.sort(key=lambda each: float(each["ts"]))
    began = float(found[0]["ts"]) if found else 0.0
    names: dict[str, int] = {}
    lanes: dict[Any, int] = {}
    events = []
    for each in found:
        arguments = each.get("args", {})
        lane = ("stream", arguments["stream"]) if "stream" in arguments else ("thread", each["tid"])
        on_gpu = each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
        name = each["name"].split("(")[0][:60] if on_gpu else each["name"][:60]
        events.append([
            KINDS.index(each["cat"]),
            names.setdefault(name, len(names)),
            lanes.setdefault(lane if on_gpu else ("thread", each["tid"]), len(lanes)),
            round(10 * (float(each["ts"]) - began)),
            round(10 * float(each.get("dur", 0.0))),
            int(arguments.get("correlation", 0)),
        ])  # fmt: skip
    return {"names": list(names), "lanes": [list(each) for each in lanes], "events": events}
