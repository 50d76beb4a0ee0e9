"""PyTorch's flight recorder in this rank: also what C++ starts by itself, and what never ended.

On GPUs a collective is only queued by the host: the one that hangs may be many calls back. PyTorch keeps
a ring of them with their state (torch 2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp), since 2.9 for
Gloo too. It is read as JSON: its other form is a pickle, and those can run code.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from zerokit.launcher.rank_file import Record

ENTRIES = 2000
"""That PyTorch keeps, where the user says nothing; some hundred bytes each."""
_MOST_WRITTEN = 96  # of each group, from shortly before the first that has not ended
_BEFORE = 16
_RENAMED_IN = (2, 9)  # TORCH_NCCL_TRACE_BUFFER_SIZE became TORCH_FR_BUFFER_SIZE
_SIZE = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
_FILE = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # of NCCL, of the other backends
_DTYPES = {"float": "float32", "half": "float16", "double": "float64", "long": "int64", "int": "int32",
           "byte": "uint8", "char": "int8", "short": "int16"}  # fmt: skip
_ONE_SIDED = re.compile(r"(send|recv)\b")


def switch_on(run_dir: Path, torch_version: str, environment: MutableMapping[str, str]) -> None:
    """Have PyTorch record, before the first process group is made; what the user set is kept.

    What PyTorch writes when its own watchdog ends the process goes into the run folder, not to ``/tmp``.
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch_version)
    new = numbers is None or (int(numbers[1]), int(numbers[2])) >= _RENAMED_IN
    for names, value in ((_SIZE, str(ENTRIES)), (_FILE, str(run_dir / "flight-recorder-"))):
        if not any(name in environment for name in names):
            environment[names[new]] = value


def flight_record() -> Record | None:
    """The groups' last collectives as a line of the rank's file; None where PyTorch has none."""
    entries: dict[str, list[Record]] = {}
    module = sys.modules.get("torch._C._distributed_c10d")
    for name in _DUMPS:
        dump = getattr(module, name, None)
        if dump is None:
            continue
        with contextlib.suppress(Exception):
            for item in json.loads(dump()).get("entries", []):
                entry = _entry(item)
                entries.setdefault(entry["group"], []).append(entry)
    if not entries:
        return None
    return {"type": "flight", "calls": [call for group in entries.values() for call in _group_calls(group)]}


def _group_calls(group: list[Record]) -> list[Record]:
    """The part of a group's calls that tells most; ``from_end`` counts those queued after each."""
    for number, entry in enumerate(group):
        entry["from_end"] = len(group) - 1 - number
    pending = next((n for n, entry in enumerate(group) if entry.get("pending")), len(group))
    first = max(0, min(pending - _BEFORE, len(group) - _MOST_WRITTEN))
    return group[first : first + _MOST_WRITTEN]


def _entry(item: dict[str, Any]) -> Record:
    operation = str(item["profiling_name"]).partition(":")[2] or str(item["profiling_name"])
    one_sided = bool(item.get("is_p2p")) or _ONE_SIDED.match(operation) is not None
    sizes, dtypes = item.get("input_sizes") or [], item.get("input_dtypes") or []
    record: Record = {
        "count": item["p2p_seq_id" if one_sided else "collective_seq_id"],
        "operation": operation.partition(" ")[0],
        "group": str(item["process_group"][0]),
    }
    if len(sizes) == len(dtypes) == 1:
        dtype = str(dtypes[0]).lower()
        record |= {"shape": sizes[0], "dtype": _DTYPES.get(dtype, dtype)}
    if not item.get("retired") and item.get("state") != "completed":
        record["pending"] = True
    return record
