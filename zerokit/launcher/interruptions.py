"""Signals that reach a launch whose run is over, while its report is written, explained and shown."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruptions:
    """Keeps the first signal from ending a launch that still has to tell how its run ended.

    The first ends what may be skipped (a rehearsal, the search for a next plan) with a KeyboardInterrupt
    there, and nothing elsewhere. A second one ends the launch, with the run's own exit code once that is
    known.

    Args:
        is_over: whether the run is; a signal before that does what it did without this.

    Attributes:
        seen: the signals so far.
        exit_code: the run's own; None before it is judged and its report written.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: True) -> None:
        self.seen: list[signal.Signals] = []
        self.exit_code: int | None = None
        self._is_over = is_over
        self._skippable = False
        self._old: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():  # only there can a handler be set
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
                    self._old[number] = signal.signal(number, self._heed)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @contextmanager
    def skippable(self) -> Iterator[None]:
        """What the first signal ends, raising KeyboardInterrupt there.

        Raises:
            KeyboardInterrupt: a signal came, before or meanwhile.
        """
        if self.seen:
            raise KeyboardInterrupt
        self._skippable = True
        try:
            yield
        finally:
            self._skippable = False

    @property
    def told_to_end(self) -> bool:
        """Whether a signal came that asks for more than skipping: nothing new is to be started."""
        return any(number is not signal.SIGINT for number in self.seen) or len(self.seen) > 1

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over():
            self._as_before(number, frame)
            return
        self.seen.append(signal.Signals(number))
        if self._skippable:
            self._skippable = False  # what cleans up is not interrupted
            raise KeyboardInterrupt
        if len(self.seen) > 1:
            raise SystemExit(128 + number if self.exit_code is None else self.exit_code)

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        handler = self._old[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
