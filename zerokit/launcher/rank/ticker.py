"""The thread that writes down every 0.4 s what a rank knows, whatever the training thread is doing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from zerokit.launcher.rank import deadman
from zerokit.launcher.rank.calls import Calls, flight_record
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank_file import (
    COMPACT_BYTES,
    STACKS_SIGNAL,
    TICK_SECONDS,
    TIMELINE_FIELDS,
    RankEvents,
    Record,
)

_NOW = 0xFF  # in the pipe of the signals' numbers: no signal has it
_SAMPLE_SECONDS = 0.1  # of host memory on CPU ranks, where it is what is measured
_TIMELINE_POINTS = 1024
_ALONE_SECONDS = 5.0  # from SIGTERM to SIGKILL, once zerokit is gone
_STUCK_SECONDS = 1.0  # how long the training thread gets to run a signal handler


class MemoryTimeline:
    """Points over time in bounded space, neighbours merged, keeping the larger; and the events."""

    def __init__(self) -> None:
        self.points: list[list[Any]] = []
        self.events = RankEvents()
        self._every = 1
        self._seen = 0

    def add(self, record: Record) -> None:
        """Add what a tick says."""
        self.events.add(record)
        point = [record.get(name) for name in TIMELINE_FIELDS]
        if self._seen % self._every and self.points:
            self.points[-1] = _larger(self.points[-1], point)
        else:
            self.points.append(point)
        self._seen += 1
        if len(self.points) >= _TIMELINE_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_larger(first, second) for first, second in pairs]
            self._every *= 2
            self._seen = 0

    def record(self, rank: int, pid: int) -> Record:
        """Points and events as one record of the rank's file."""
        return {"type": "timeline", "rank": rank, "pid": pid, "fields": list(TIMELINE_FIELDS),
                "points": self.points, "events": [list(event) for event in self.events.events]}  # fmt: skip


def _larger(first: list[Any], second: list[Any]) -> list[Any]:
    return first if (first[3] or first[6] or 0) >= (second[3] or second[6] or 0) else second


class Ticker:
    """Writes the ticks, and the end when a signal finds the training thread stuck in a collective."""

    def __init__(self, probe: Probe, calls: Calls) -> None:
        self._probe = probe
        self._calls = calls
        self._timeline = MemoryTimeline()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zerokit-ticker", daemon=True)
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._pipe = os.fstat(self._write_end).st_ino
        self._sample = probe.identity.device == "cpu"
        self._stuck_since: float | None = None
        self._watches = deadman.watches(probe.run_dir, probe.identity.rank)
        self._alone_since: float | None = None
        self.terminates: Callable[[], bool] = lambda: False
        """Whether SIGTERM is still ours: the script may have put its own handler."""
        self.handled = threading.Event()
        """Set by the training thread when it got to its handler."""

    def start(self) -> None:
        """Begin. Call it from the main thread, which receives signals."""
        # the C-level handler writes the signal's number here at once, even while the main thread sits
        # in a collective and cannot run a Python handler
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._probe.writer.write(self._probe.identity.start_record())
        self._thread.start()

    def tick_now(self) -> None:
        """What is known is worth writing at once: the process may end before the next tick."""
        with contextlib.suppress(OSError):  # the script may have closed it, and opened a file of its own
            if os.fstat(self._write_end).st_ino == self._pipe:
                os.write(self._write_end, bytes([_NOW]))

    def stop(self) -> None:
        """End the thread; waits for a write in progress, but not for long."""
        self._stop.set()
        with contextlib.suppress(OSError):
            os.write(self._write_end, b"\0")
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)

    def forget(self) -> None:
        """In a forked child: signals there are none of ours."""
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(-1)
        for end in (self._read_end, self._write_end):
            with contextlib.suppress(OSError):
                os.close(end)

    def _run(self) -> None:
        next_tick = 0.0
        while not self._stop.is_set():
            try:
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_SECONDS
                    self._tick()
                elif self._sample:
                    self._probe.sample_host()
                self._wait(next_tick)
            except Exception:  # nothing here may end the ticks, let alone the training
                time.sleep(TICK_SECONDS)

    def _wait(self, next_tick: float) -> None:
        limit = max(0.0, next_tick - time.monotonic())
        seconds = min(limit, _SAMPLE_SECONDS) if self._sample or self._stuck_since is not None else limit
        try:
            ready, _, _ = select.select([self._read_end], [], [], seconds)
        except (OSError, ValueError):  # the script closed our descriptors
            self._stop.wait(seconds)
            return
        if ready:
            with contextlib.suppress(OSError):
                self._signalled(os.read(self._read_end, 512))
        if self._stuck_since is not None and time.monotonic() - self._stuck_since > _STUCK_SECONDS:
            self._stuck_since = None
            if not self.handled.is_set() and self.terminates():
                self._probe.end("terminated", None, signal.SIGTERM)
                _die_of(signal.SIGTERM)

    def _signalled(self, numbers: bytes) -> None:
        if STACKS_SIGNAL in numbers:
            self._probe.writer.write(self._calls.record())
            flight = flight_record()  # after our own: it asks the driver, which may not answer
            if flight is not None:
                self._probe.writer.write({"rank": self._probe.identity.rank, "time": time.time(), **flight})
        if signal.SIGTERM in numbers and self.terminates():
            self._stuck_since = time.monotonic()
            self._tick()
        elif _NOW in numbers:
            self._tick()

    def _look_for_zerokit(self) -> None:
        if self._alone_since is None:
            if any(watch.is_orphaned() for watch in self._watches):
                self._alone_since = time.monotonic()
                os.kill(os.getpid(), signal.SIGTERM)
        elif time.monotonic() - self._alone_since > _ALONE_SECONDS:
            self._probe.end("terminated", None, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def _tick(self) -> None:
        self._look_for_zerokit()
        probe = self._probe
        probe.watch()
        probe.tell_of_engine()
        record = probe.account("tick")
        self._timeline.add(record)
        probe.writer.write(record)
        calls = self._calls.news(float(record["idle_seconds"]))
        if calls is not None:
            probe.writer.write(calls)
        if probe.writer.size_bytes() > COMPACT_BYTES:
            identity = probe.identity
            probe.writer.compact(
                [probe.identity.start_record(), *probe.events, *probe.notes,
                 self._timeline.record(identity.rank, identity.pid), self._calls.record(), record]
            )  # fmt: skip


def _die_of(number: int) -> None:
    """End this process by the signal, from any thread: Python lets only the main one reset a handler."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(number, None)  # SIG_DFL
    os.kill(os.getpid(), number)
