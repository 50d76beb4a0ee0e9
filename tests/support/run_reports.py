"""Rank files and reports of runs that never were, for tests of what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.support import reports
from zerokit.launcher.rank_file import rank_file
from zerokit.report.render import print_report

GIB = 1 << 30


MIB = 1 << 20


def gpu_phase(peak: int) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": peak,
        "peak_host_rss_bytes": GIB,
        "seconds": 1.0,
        "count": 3,
    }


def write_rank(
    folder: Path,
    rank: int,
    *,
    peak: int = 30 * GIB,
    on_gpu: bool = True,
    device: str | None = None,
    extra: list[Any] = (),
    **end: Any,
) -> None:
    phases = {
        name: gpu_phase(peak - cut * GIB)
        for name, cut in (("init", 10), ("forward", 3), ("backward", 0), ("step", 8))
    }
    if not on_gpu:
        for phase in phases.values():
            phase.update(peak_allocated_bytes=None, peak_reserved_bytes=None)
    known: dict[str, Any] = {
        "rank": rank,
        "pid": 100 + rank,
        "time": 1000.0,
        "uptime_seconds": 10.0,
        "phase": "other",
        "steps": 12,
        "micro_steps": 24,
        "peak_host_rss_bytes": 3 * GIB,
        "host_rss_bytes": 2 * GIB,
        "phases": phases,
        "baseline_host_rss_bytes": GIB,
        "median_step_seconds": 0.5,
    }
    if on_gpu:
        known.update(
            peak_allocated_bytes=peak,
            peak_reserved_bytes=peak + GIB,
            allocated_bytes=peak - GIB,
            reserved_bytes=peak,
            peak_device_used_bytes=peak + 2 * GIB,
            device_total_bytes=80 * GIB,
            alloc_retries=0,
        )
    records = [
        {
            "type": "start",
            "rank": rank,
            "host": f"node-{rank // 4}",
            "pid": 100 + rank,
            "world_size": 8,
            "device": device or ("cuda" if on_gpu else "cpu"),
            "script": "train.py",
            "time": 990.0,
        },
        *(
            {**known, "type": "tick", "uptime_seconds": float(second), "time": 990.0 + second}
            for second in range(9)
        ),
        *extra,
        {**known, "type": "end", "state": "finished", "exit_code": 0, "signal": None, "error": None, **end},
    ]
    rank_file(folder, rank).write_text("".join(json.dumps(record) + "\n" for record in records))


PLAN = {
    "chosen": {
        "estimate": {
            "peak_allocated_bytes": 31 * GIB,
            "min_vram_bytes": 36 * GIB,
            "step_seconds": 0.45,
            "per_rank": [
                {
                    "rank": 0,
                    "ranks": [0, 3],
                    "peak_allocated_bytes": 31 * GIB,
                    "peak_phase": "backward",
                    "phases": {"init": 20 * GIB, "forward": 27 * GIB, "backward": 31 * GIB, "step": 22 * GIB},
                    "components": {"parameters": 11 * GIB, "gradients": 20 * GIB},
                },
                {
                    "rank": 4,
                    "ranks": [4, 7],
                    "peak_allocated_bytes": 29 * GIB,
                    "phases": {},
                    "components": {},
                },
            ],
        },
    },
}


def report_of(folder: Path, ranks: int, plan: Any = PLAN, **more: Any) -> dict[str, Any]:
    return reports.report_of(folder, ranks, plan=plan, **more)


def shown(report: dict[str, Any], folder: Path | None = None, width: int = 200) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_report(report, console, folder=folder)
    return console.export_text()


OOM = {
    "type": "oom",
    "rank": 1,
    "pid": 101,
    "time": 998.0,
    "asked_bytes": 2 * GIB,
    "device_free_bytes": GIB,
    "allocated_bytes": 70 * GIB,
    "reserved_bytes": 76 * GIB,
    "fragmentation_bytes": 6 * GIB,
    "phase": "backward",
    "step": 3,
    "biggest_blocks": [{"bytes": 4 * GIB, "name": "lm_head.weight", "shape": [8, 4], "dtype": "bfloat16"}],
}


ERROR = {
    "type": "error",
    "rank": 1,
    "pid": 101,
    "time": 998.1,
    "phase": "backward",
    "step": 3,
    "out_of_memory": True,
    "memory": "gpu",
    "asked_bytes": 2 * GIB,
    "error": "OutOfMemoryError: CUDA out of memory.",
    "traceback": "Traceback …\nOutOfMemoryError: CUDA out of memory.",
}


BROKEN = {
    "type": "error",
    "rank": 0,
    "pid": 100,
    "time": 997.9,
    "phase": "backward",
    "step": 3,
    "error": "RuntimeError: Connection closed by peer",
    "traceback": "…",
}
