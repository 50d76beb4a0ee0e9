"""What trackers kept of a run, read from their own files: metric, step, value.

    python -m benchmarks.tracker_curves FOLDER      # prints {tracker: {metric: {step: value}}}

``FOLDER`` holds what :func:`variables` made the trackers write: TensorBoard's event files in ``tensorboard``,
an offline run of Weights & Biases in ``wandb``, MLflow's file store in ``mlflow``, Trackio's database in
``trackio``. Weights & Biases and Trackio count every call as a step of their own; the Trainer's
``train/global_step`` in the same row is the step here.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Curves = dict[str, dict[int, float]]
"""Metric → step → value."""
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
_GLOBAL_STEP = "train/global_step"
_BLOCK_BYTES = 32768
_HEADER_BYTES = 7


def variables(folder: Path) -> dict[str, str]:
    """Environment variables that keep every tracker on this machine, in ``folder``."""
    return {
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
        "WANDB_MODE": "offline", "WANDB_DIR": str(folder),
        "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": (folder / "mlflow").as_uri(),
        "TRACKIO_DIR": str(folder / "trackio"), "GRADIO_ANALYTICS_ENABLED": "False", "DO_NOT_TRACK": "1",
    }  # fmt: skip


def curves(tracker: str, folder: Path) -> Curves:
    """What ``tracker`` kept below ``folder``; empty where it wrote nothing."""
    found: Curves = defaultdict(dict)
    for metric, step, value in _READERS[tracker](folder):
        found[metric][step] = value
    return dict(found)


def _tensorboard(folder: Path) -> Iterator[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted((folder / "tensorboard").rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tensor.float_val:
                    yield value.tag, event.step, value.tensor.float_val[0]


def _mlflow(folder: Path) -> Iterator[tuple[str, int, float]]:
    for metrics in (folder / "mlflow").glob("*/*/metrics"):
        for path in metrics.rglob("*"):
            for line in path.read_text().splitlines() if path.is_file() else ():
                _, value, step = line.split()
                yield str(path.relative_to(metrics)), int(step), float(value)


def _trackio(folder: Path) -> Iterator[tuple[str, int, float]]:
    for path in (folder / "trackio").glob("*.db"):
        with sqlite3.connect(path) as database:
            rows = database.execute("select step, metrics from metrics order by step").fetchall()
        for step, metrics in rows:
            yield from _numbers(json.loads(metrics), step)


def _wandb(folder: Path) -> Iterator[tuple[str, int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for path in (folder / "wandb").glob("offline-run-*/*.wandb"):
        for data in _leveldb_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                row = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
                yield from _numbers(row, record.history.step.num)


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, behind the seven bytes that W&B puts before them
    (github.com/google/leveldb, doc/log_format.md)."""
    at, record = _HEADER_BYTES, b""
    while at + _HEADER_BYTES <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += _HEADER_BYTES
        record += data[at : at + length]
        at += length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


def _numbers(row: Mapping[str, Any], step: int) -> Iterator[tuple[str, int, float]]:
    for metric, value in row.items():
        if isinstance(value, (int, float)):
            yield metric, int(row.get(_GLOBAL_STEP, step)), float(value)


_READERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def main() -> None:
    print(json.dumps({tracker: curves(tracker, Path(sys.argv[1])) for tracker in TRACKERS}))


if __name__ == "__main__":
    main()
