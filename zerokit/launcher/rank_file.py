"""The file one rank appends to while it lives, and its reader.

``rank-00003.jsonl`` holds one JSON object a line. Every line is written by a single ``write(2)`` on a
descriptor opened with ``O_APPEND``, so a kill at any moment leaves whole lines and at most one cut one.

===========  ==========================================================================================
``start``    schema, rank, host, pid, script: who writes, once per process
``tick``     every 0.4 s: what is in use now, and everything known so far (peaks, phases, steps), so that
             the last whole line of a killed rank is its full account
``engine``   what DeepSpeed trains with, and again when that changed (:mod:`zerokit.instrument.engine_facts`)
``timed``    steps and seconds of each, measured under a step limit (:mod:`zerokit.launcher.rank.step_limit`)
``oom``      an allocation that failed: what was asked for, what was live
``error``    an exception that nobody caught
``calls``    the last collectives it entered, and where its Python is: when quiet or asked, and before the
             last line (:mod:`zerokit.launcher.rank.calls`)
``checkpoint`` one that this rank finished writing (:mod:`zerokit.launcher.rank.checkpoints`)
``flight``   what PyTorch's flight recorder holds, when asked (:mod:`zerokit.launcher.rank.calls`)
``note``     a snapshot or comparison the script asked for
``timeline`` points and events kept when a long file was compacted
``end``      the last line: everything known, and how it ended. Without it the rank did not finish.
===========  ==========================================================================================

A ``tick`` also says whether the rank moves: ``progress`` counts phase changes, ``idle_seconds`` is the
time since the main thread was last seen doing something new (a phase change, another place in its
code, a GPU allocation), ``cpu_seconds`` the CPU time of the whole process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeGuard

from zerokit.domain import phases
from zerokit.files import open_regular, write_whole

SCHEMA = "zerokit.rank/1"
TICK_SECONDS = 0.4  # below the half second that may be lost at most
COMPACT_BYTES = 4 << 20  # a file beyond this is rewritten with its timeline thinned out
_READ_LIMIT_BYTES = 64 << 20
_NAME = re.compile(r"rank-(\d{5,})\.jsonl")
_MOST_KEPT_OPEN = 256  # of the files of many ranks: a process may open so many, often 1,024 in all
_LOCK_SECONDS = 2.0  # a stuck network file system must not hold up the training thread

STACKS_SIGNAL = signal.SIGURG
"""Asks a rank for its Python stacks and its record of collectives. Ignored by processes that know nothing
of it, and of no use to scripts: SIGUSR1 and SIGUSR2 are theirs (Slurm sends them before a job's end)."""

Record = dict[str, Any]
TIMELINE_FIELDS = ("uptime_seconds", "phase", "steps", "allocated_bytes", "reserved_bytes",
                   "device_used_bytes", "host_rss_bytes")  # fmt: skip
"""Of a point over time: of a ``timeline``, of a report's."""


def rank_file_name(rank: int) -> str:
    """``rank-00003.jsonl``."""
    return f"rank-{rank:05d}.jsonl"


def rank_file(run_dir: Path, rank: int) -> Path:
    """Path of the file that rank ``rank`` of the run in ``run_dir`` appends to."""
    return run_dir / rank_file_name(rank)


def stacks_file(run_dir: Path, rank: int) -> Path:
    """Path of the file that takes the Python stacks of rank ``rank`` (on STACKS_SIGNAL, or at a crash)."""
    return run_dir / f"stacks-{rank:05d}.txt"


def native_stacks_file(run_dir: Path, rank: int) -> Path:
    """Path of the file that takes the native stacks of rank ``rank``, where py-spy is installed."""
    return run_dir / f"stacks-{rank:05d}.native.txt"


class RankWriter:
    """Appends records to one rank's file. Never raises: training goes on when the disk is full."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.rank = rank
        self.failed_writes = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt a write of its own thread
        self._descriptor: int | None = None
        self._cut = False
        self._closed = False

    def write(self, record: Record, *, last: bool = False) -> bool:
        """Append one record; with ``last`` nothing can follow it. Says whether it was written whole."""
        return self._locked(lambda: self._append(_line(record)), last=last)

    def _locked(self, action: Callable[[], bool], *, last: bool = False) -> bool:
        if os.getpid() != self._pid or not self._lock.acquire(timeout=_LOCK_SECONDS):
            return False  # a forked child never writes
        try:
            if self._closed:
                return False
            self._closed = last
            return action()
        except (OSError, ValueError, TypeError):
            self.failed_writes += 1
            self._close()
            return False
        finally:
            self._lock.release()

    def _append(self, line: bytes) -> bool:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(self.path, flags, 0o600)
            # an earlier process of this rank (a restarted one) may have left its last line cut
            self._cut = False
            with contextlib.suppress(OSError), self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    self._cut = file.read(1) != b"\n"
        if self._cut:  # what the full disk cut off must not swallow this line too
            line = b"\n" + line
        written_bytes = os.write(self._descriptor, line)
        self._cut = written_bytes < len(line)
        if self._cut:
            self.failed_writes += 1
        return not self._cut

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def size_bytes(self) -> int:
        """Size of the file now; 0 where there is none."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def compact(self, records: list[Record]) -> bool:
        """Replace the file by ``records``, whole or not at all. Says whether it did."""

        def replace() -> bool:
            write_whole(self.path, b"".join(map(_line, records)), durable=False, mode=0o600)
            self._close()
            return True

        return self._locked(replace)


def _line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line of a rank file that could not be used."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class RankLog:
    """What a rank's file holds: the good records in order, and the lines that were not."""

    rank: int
    path: Path
    records: list[Record] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)

    def last(self, *types: str) -> Record | None:
        """The last record of one of these types, of the rank's last process."""
        for record in reversed(self.life()):
            if record["type"] in types:
                return record
        return None

    def life(self) -> list[Record]:
        """The records of the last process that wrote: a restarted rank begins a new life."""
        starts = [index for index, record in enumerate(self.records) if record["type"] == "start"]
        if not starts:
            return self.records
        pid = self.records[starts[-1]].get("pid")
        life = self.records[starts[-1] :]
        return [record for record in life if record.get("pid", pid) == pid]

    def writers(self) -> list[int]:
        """Process ids that wrote ``start`` lines, in order."""
        return [record["pid"] for record in self.records if record["type"] == "start" and "pid" in record]

    def interleaved(self) -> bool:
        """Whether two processes wrote at the same time: both believed to be this rank."""
        pids: list[int] = []
        for record in self.records:
            pid = record.get("pid")
            if pid is None or (pids and pids[-1] == pid):
                continue
            if pid in pids:
                return True
            pids.append(pid)
        return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_COUNTS = frozenset((
    "steps", "micro_steps", "most_micro_steps", "skipped_steps", "step", "count", "progress", "pid",
    "local_rank", "world_size", "signal", "exit_code", "cuda_device", "alloc_retries", "ooms",
    "failed_writes", "first_step", "last_step", "bytes", "growth_bytes", "asked_bytes",
    "allocated_bytes", "reserved_bytes", "device_used_bytes", "device_total_bytes", "device_free_bytes",
    "host_rss_bytes", "baseline_host_rss_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
    "peak_device_used_bytes", "peak_host_rss_bytes",
))  # fmt: skip
_NUMBERS = frozenset((
    "time", "uptime_seconds", "idle_seconds", "cpu_seconds", "step_seconds", "seconds",
    "median_step_seconds", "bytes_per_step",
))  # fmt: skip
_TEXTS = frozenset((
    "type", "phase", "state", "host", "script", "error", "traceback", "memory", "device", "device_name",
    "name", "dtype", "label", "kind", "gpu_status", "left_at", "left_in",
))  # fmt: skip
_TABLES = {"phases": dict, "leaks": list, "biggest_blocks": list, "points": list, "fields": list}
_MOST = 1 << 53  # beyond it a number is damage
_MOST_BYTES = 1 << 62  # a script with a bug may ask for this many


def _why_bad_field(name: str, value: Any) -> str | None:
    """Why a field's value cannot be, or None."""
    if value is None:
        return None
    if name in _COUNTS:
        most = _MOST_BYTES if name.endswith("bytes") else _MOST
        good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
    elif name in _NUMBERS:
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
    elif name in _TEXTS:
        good = isinstance(value, str)
    elif name in _TABLES:
        good = isinstance(value, _TABLES[name])
        inner = value.values() if isinstance(value, dict) else value
        if good and name not in ("points", "fields"):
            return next((why for item in inner if (why := _why_bad_fields(item))), None)
    else:
        return None
    return None if good else f"{name} is {str(value)[:40]!r}"


def _why_bad_fields(record: object) -> str | None:
    if not isinstance(record, dict):
        return "not a table"
    return next((why for name, value in record.items() if (why := _why_bad_field(name, value))), None)


def _parse_line(line: bytes, rank: int) -> tuple[Record | None, str | None]:
    if b"\0" in line:
        return None, "holds NUL bytes"
    try:
        record = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None, "cut or damaged"
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        return None, "not a record"
    if record.get("rank", rank) != rank:
        return None, f"written by rank {str(record['rank'])[:20]}"
    reason = _why_bad_fields(record)
    return (None, reason) if reason else (record, None)


def read_rank_file(path: Path) -> RankLog:
    """Read a rank's file, keeping every good line. Raises OSError: the file cannot be opened. ValueError: its
    name is not that of a rank file."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not a rank file")
    log = RankLog(rank=int(match[1]), path=path)
    with open_regular(path, path.parent) as file:
        data = file.read(_READ_LIMIT_BYTES)
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        record, reason = _parse_line(line, log.rank)
        if record is not None:
            log.records.append(record)
        else:
            log.bad_lines.append(BadLine(path=path.name, line=number, reason=reason or "damaged"))
    return log


def find_rank_files(run_dir: Path) -> list[Path]:
    """The rank files of a run folder, by rank."""
    try:
        paths = [path for path in run_dir.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(paths, key=lambda path: int(path.name[5:-6]))


class RankTail:
    """Follows a rank's file while it is written: the newest whole record, for a few bytes of reading.

    Costs two calls of the system when nothing was added, so that one process can follow many ranks. A
    file that is removed while it is written is read on to its end.
    """

    def __init__(self, path: Path) -> None:
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name} is not a rank file")
        self.path = path
        self.rank = int(match[1])
        self.records: dict[str, Record] = {}
        """The newest record of each type."""
        self._descriptor: int | None = None
        self._file = (0, 0)  # device and inode of what is open
        self._offset = 0

    def poll(self) -> list[Record]:
        """Good records added since the last call; a line still being written waits for the next."""
        try:
            self._reopen()
            if self._descriptor is None:
                return []
            size = os.fstat(self._descriptor).st_size
            if size < self._offset:
                self._offset = 0
            if size == self._offset:
                return []
            data = os.pread(self._descriptor, _READ_LIMIT_BYTES, self._offset)
        except OSError:
            return []
        finally:
            if self.rank >= _MOST_KEPT_OPEN:
                self.close()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        records = [_parse_line(line, self.rank)[0] for line in complete.split(b"\n") if line.strip()]
        added = [record for record in records if record is not None]
        for record in added:
            self.records[record["type"]] = record
        return added

    def _reopen(self) -> None:
        """Where another file has taken the path (the rank compacts its own), that one from its beginning."""
        try:
            status = self.path.stat()
        except OSError:
            return
        is_same_file = self._file == (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode) or (is_same_file and self._descriptor is not None):
            return
        self.adopt(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        if not is_same_file:
            self._file, self._offset = (status.st_dev, status.st_ino), 0

    def adopt(self, descriptor: int) -> None:
        """Follow what is open already: also a file that was removed before its path was read."""
        self.close()
        self._descriptor = descriptor

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def last_account(self) -> list[Record]:
        """The newest record of each type: all that a report needs where the file itself is gone."""
        order = {"start": 0, "end": 2}
        return sorted(
            self.records.values(), key=lambda r: (order.get(r["type"], 1), float(r.get("time") or 0.0))
        )


_PARTS = {phase.name: phase.event for phase in phases.ALL if phase.event}
_COUNTERS = {"alloc_retries": "retry", "ooms": "oom", "skipped_steps": "skipped step"}
_MOST_EVENTS = 256


class Event(NamedTuple):
    """What happened (``evaluation``, ``generation``, ``save``; ``retry``: the allocator gave its cache back
    and tried again; ``oom``: an allocation that failed; ``skipped step``), how many seconds after the rank
    began, and how often. In a rank's file it is a list of the three."""

    at: float
    kind: str
    times: int


class RankEvents:
    """Events of one rank in bounded space. Calls of one kind with no optimizer step between them are one
    event, as are the forwards of an evaluation loop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._counts: dict[str, int] = {}
        self._steps_at: dict[str, int] = {}  # optimizer steps done when the last event of a kind began
        self._resumed = False

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what a ``tick`` or ``end`` says beyond the one before."""
        at, steps = record.get("uptime_seconds"), record.get("steps")
        if not _is_number(at) or not _is_number(steps):
            return
        before, reached = list(self.events), record.get("phases")
        for phase, kind in _PARTS.items():
            details = reached.get(phase) if isinstance(reached, Mapping) else None
            if self._rose(phase, details.get("count") if isinstance(details, Mapping) else None):
                if self._steps_at.get(kind) != steps:
                    self._append(at, kind, 1)
                self._steps_at[kind] = int(steps)
        for name, kind in _COUNTERS.items():
            if more := self._rose(name, record.get(name)):
                self._append(at, kind, more)
        if self._resumed:
            self.events, self._resumed = before, False

    def resume(self, kept: object) -> None:
        """Take the events of a file that was compacted. The tick behind them tells nothing new."""
        if isinstance(kept, list):
            self.events = [Event(*event) for event in kept if _is_event(event)][:_MOST_EVENTS]
            self._resumed = True

    def _rose(self, name: str, value: object) -> int:
        """By how much a count is above the last one."""
        if not _is_number(value):
            return 0
        more = int(value) - self._counts.get(name, 0)
        self._counts[name] = max(int(value), self._counts.get(name, 0))
        return max(0, more)

    def _append(self, at: float, kind: str, times: int) -> None:
        self.events.append(Event(round(float(at), 1), kind, times))
        if len(self.events) > _MOST_EVENTS:
            # join neighbours of the commonest kind in pairs, each at the time of its first
            kinds = [event.kind for event in self.events]
            commonest = max(set(kinds), key=kinds.count)
            kept: list[Event] = []
            first: int | None = None  # of a pair, among those kept
            for event in self.events:
                if event.kind != commonest:
                    kept.append(event)
                elif first is None:
                    first = len(kept)
                    kept.append(event)
                else:
                    kept[first] = kept[first]._replace(times=kept[first].times + event.times)
                    first = None
            self.events = kept


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_event(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and _is_number(value[0]) and isinstance(value[1], str)
        and isinstance(value[2], int) and not isinstance(value[2], bool) and value[0] >= 0 and value[2] > 0
    )  # fmt: skip
