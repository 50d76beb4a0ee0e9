"""What is written of a run: the columns of ``data/README.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GIB = 2**30
_MACHINE = re.compile(r"/[\w./-]*/(?=[\w-]+\.py)")
_NOT_KEPT = ("cap_ladder_mib", "alone")


def notes_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank wrote; empty where it wrote nothing."""
    paths = [folder / f"rank-{rank}.json" for rank in range(ranks)]
    return [json.loads(p.read_text(encoding="utf-8")) if p.exists() else {} for p in paths]


def row_of(case: Mapping[str, Any], notes: Sequence[Mapping[str, Any]], log: Path) -> dict[str, Any]:
    """A case and what its ranks noted, in the columns of ``data/README.md``."""
    first = notes[0]
    found = {key: value for key, value in case.items() if key not in _NOT_KEPT}
    found |= {
        "timed_alone": bool(case["alone"] or case["gate"]),
        "versions": first.get("versions"),
        "ok": all(note.get("ok", False) for note in notes),
        "oom": any(note.get("oom", False) for note in notes),
    }
    error = next((note["error"] for note in notes if note.get("error")), None)
    if error or not found["ok"]:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if log.exists() else []
        found["error"] = error or "".join(tail) or "no result"
        found["error"] = _MACHINE.sub("", str(found["error"]))
    for key in ("params", "trainable_params"):
        found[key] = first.get(key)
    for key in (
        "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "device_used_before_model_bytes",
        "reserved_at_end_bytes", "alloc_retries", "host_max_rss_bytes",
    ):  # fmt: skip
        found[key] = [note.get(key) for note in notes]
    for key in ("allocated_at_failure_bytes", "reserved_at_failure_bytes", "peak_at_failure_bytes"):
        if any(key in note for note in notes):
            found[key] = [note.get(key) for note in notes]
    for name in ("after_init", "first_step", "last_step", "step_seconds"):
        found[f"{name}_rank0"] = first.get(name)
    if first.get("cap_ladder"):
        found["cap_ladder"] = first["cap_ladder"]
    return found


def say(found: Mapping[str, Any], case: Mapping[str, Any], seconds: float) -> None:
    """A line for the one who waits."""
    peaks = [p for p in found["peak_allocated_bytes"] if p]
    words = "ok" if found["ok"] else "out of memory" if found["oom"] else f"failed: {found.get('error')}"
    line = f"{found['id']}: {words}, {seconds:.0f} s"
    if peaks:
        line += f", peak {max(peaks) / GIB:.2f} GiB"
        if case["expected"]:
            wanted = max(case["expected"]["peak_allocated_bytes"])
            line += f" ({wanted / max(peaks) - 1:+.2%} predicted)"
    print(line, flush=True)


def measured_ids(path: Path) -> set[str]:
    """The cases that a file of rows holds already."""
    if not path.exists():
        return set()
    lines = path.read_text(encoding="utf-8").splitlines()
    return {json.loads(line)["id"] for line in lines if line.strip()}
