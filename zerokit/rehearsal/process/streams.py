"""Streams and events: nothing runs, so nothing is waited for; each stream has its own blocks."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zerokit.rehearsal.process.machine import Machine
from zerokit.timing import operators

_ASKED_IN_VAIN = 8
"""How often an event is not done yet: more than the three that ZeRO-3 asks about each."""


class Event:
    """``torch.cuda.Event``."""

    machine: Machine
    numbers = itertools.count(1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.number = next(self.numbers)
        self._asked = _ASKED_IN_VAIN  # one that was never recorded is done

    def record(self, stream: Stream | None = None) -> None:
        """Nothing runs."""
        self._asked = 0
        self._saw(operators.RECORD, stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing runs."""
        self._saw(operators.WAIT_EVENT, stream)

    def synchronize(self) -> None:
        """Nothing runs."""
        self._saw(operators.CALL, waits=True)

    def _saw(self, kind: str, stream: Stream | None = None, waits: bool = False) -> None:
        threads = self.machine.ledger.threads
        before = getattr(threads, "stream", 0)
        threads.stream = getattr(stream, "number", before)
        self.machine.saw_runtime(kind, "event", handle=self.number, waits=waits)
        threads.stream = before

    def query(self) -> bool:
        """Not done the first few times, since the host is ahead of a GPU: whoever then waits is seen to.

        ZeRO-3 asks so about each gather and each reduction, and waits for the third that is not done
        (partitioned_param_coordinator.py:401 and stage3.py:1664, DeepSpeed 0.19.8). Whether there is anything
        left to wait for, the played lanes say. A loop that asks until it is done comes to its end.
        """
        self._asked += 1
        return self._asked > _ASKED_IN_VAIN

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds: made up, never zero, since scripts divide by it."""
        return 1.0


class Stream:
    """``torch.cuda.Stream`` of the one machine of this process."""

    streams: Streams
    numbers = itertools.count()

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.number = next(self.numbers)
        self.device = torch.device("cuda", 0)
        self.cuda_stream = self.stream_id = self.number
        self.device_index = 0
        self.device_type = 1
        self.priority = priority
        self._before: Stream | None = None

    def wait_event(self, event: Event) -> None:
        """Nothing runs."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Nothing runs."""
        if stream.number != self.number:
            with self.streams.use(self):
                self.streams.machine.saw_runtime(operators.WAIT_STREAM, "wait_stream", handle=stream.number)

    def record_event(self, event: Event | None = None) -> Event:
        """An event that is done."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Everything is done."""
        return True

    def is_capturing(self) -> bool:
        """CUDA graphs are not captured."""
        return False

    def synchronize(self) -> None:
        """Nothing runs."""
        self.streams.machine.saw_runtime(operators.CALL, "stream_synchronize", waits=True)

    def __enter__(self) -> Stream:
        self._before = self.streams.set_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.streams.set_current(self._before)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Streams:
    """Streams of one machine, and the current one of each thread."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._current = threading.local()
        Event.machine = machine
        Stream.streams, Stream.numbers = self, itertools.count()  # the default stream is number 0
        self.default = Stream()

    def current(self, device: Any = None) -> Stream:
        """Stream of this thread."""
        return getattr(self._current, "stream", self.default)

    def set_current(self, stream: Stream | None) -> Stream:
        """Make it this thread's; returns the one before."""
        before = self.current()
        if stream is not None:
            self._current.stream = stream
            self.machine.ledger.threads.stream = getattr(stream, "number", 0)
        return before

    @contextlib.contextmanager
    def use(self, stream: Stream | None) -> Iterator[Stream | None]:
        """``with torch.cuda.stream(stream):``."""
        before = self.set_current(stream)
        try:
            yield stream
        finally:
            self.set_current(before)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Functions by their names in ``torch.cuda``."""
        return {
            "Stream": Stream,
            "ExternalStream": Stream,
            "Event": Event,
            "current_stream": self.current,
            "default_stream": lambda device=None: self.default,
            "set_stream": self.set_current,
            "stream": self.use,
            "synchronize": lambda device=None: self.machine.saw_runtime(
                operators.CALL, "synchronize", waits=True
            ),
        }
