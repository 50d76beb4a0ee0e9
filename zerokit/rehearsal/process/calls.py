"""How many functions a thread calls between the operators of a step: Python's, and those in C.

Counts repeat from run to run, times of a rehearsal do not (a fake tensor's own cost dominates them). What is
called inside of the dispatch mode is left out, and what a run on a GPU does not call.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import BuiltinFunctionType, CodeType, MethodDescriptorType
from typing import Any

_NOT_COUNTED = (
    str(Path(__file__).resolve().parents[1]),
    "zerokit/instrument/phases.py",
    "torch/_subclasses/",
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/_library/simple_registry.py",
    "torch/compiler/__init__.py",
    "torch/utils/_python_dispatch.py",
    "torch/nn/parameter.py",  # isinstance(fake, Parameter)
    "weakref.py",
)
"""Files that a run on a GPU does not enter, or enters less."""
_OF_DYNAMO = "<built-in method torch._C._dynamo."
"""What such a file calls around each operator that this process answers."""
_CONTEXTS = contextlib.__file__
"""Context managers count where their user does."""
_UNCOUNTED, _USUAL, _GENERATOR, _CONTEXT, _C = range(5)


class _Kinds:
    """How the calls of each function count."""

    def __init__(self) -> None:
        # by id: a code's hash would read all its constants
        self.known: dict[int | str, int] = {}
        self._codes: list[CodeType | str] = []  # whose ids are those of no other

    def of(self, code: CodeType | str) -> int:
        """How the calls of a function count; one in C is a text."""
        key = code if isinstance(code, str) else id(code)
        kind = self.known.get(key)
        if kind is None:
            kind = self.known[key] = self._kind(code)
            self._codes.append(code)
        return kind

    @staticmethod
    def _kind(code: CodeType | str) -> int:
        if isinstance(code, str):
            return _UNCOUNTED if code.startswith(_OF_DYNAMO) else _C
        if any(part in code.co_filename for part in _NOT_COUNTED):
            return _UNCOUNTED
        if code.co_filename == _CONTEXTS:
            return _CONTEXT
        return _GENERATOR if code.co_flags & CO_GENERATOR else _USUAL


class _Thread(threading.local):
    """One thread's counts; ``counts``: whether it counts now, which it does from its first operator on."""

    def __init__(self, profiler: Callable[[], Any]) -> None:
        self.depth = 0
        self.counts = False
        self.python = self.c = 0
        self.profiler = profiler()


class Calls:
    """The counts of each thread.

    cProfile's profiler counts in C, a function of ours in Python would take three times what a step takes.
    It tells who called what, but not what the frames call that were there when it began.
    """

    def __init__(self) -> None:
        import _lsprof

        self._kinds = _Kinds()
        self._counts = False
        self._thread = _Thread(lambda: _lsprof.Profiler(subcalls=True, builtins=True))

    def begin(self) -> None:
        """Count, in this thread from here on."""
        self._counts = True
        self.take()
        self._thread.depth = 0
        self._go_on(self._thread)

    def end(self) -> None:
        """Count no more."""
        self._pause(self._thread)
        self._counts = False

    def enter(self) -> None:
        """This thread begins what does not count."""
        thread = self._thread
        if not thread.depth:
            self._pause(thread)
        thread.depth += 1

    def leave(self) -> None:
        """The end of :meth:`enter`."""
        thread = self._thread
        thread.depth = max(0, thread.depth - 1)
        if not thread.depth:
            self._go_on(thread)

    def take(self) -> tuple[int, int]:
        """What this thread has called since the last time: functions in Python, and in C."""
        thread = self._thread
        counts = thread.python, thread.c
        thread.python = thread.c = 0
        return counts

    def _go_on(self, thread: _Thread) -> None:
        if self._counts:
            thread.counts = True
            thread.profiler.enable()

    def _pause(self, thread: _Thread) -> None:
        if not thread.counts:
            return
        thread.counts = False
        profiler, kind_of, known = thread.profiler, self._kinds.of, self._kinds.known
        profiler.disable()
        python = c = 0
        for code, count, _, _, _, inner in profiler.getstats():
            kind = known.get(code if code.__class__ is str else id(code))
            if kind is None:
                kind = kind_of(code)
            if kind == _C:
                c += count
            elif kind in (_USUAL, _CONTEXT):  # a generator that goes on is a call here
                python += count
            elif kind == _UNCOUNTED and inner is not None:
                for called, times, *_ in inner:
                    of_called = kind_of(called)
                    if of_called == _C:
                        c -= times
                    elif of_called == _CONTEXT:
                        python -= times
        thread.python += python
        thread.c += c
        profiler.clear()


_monitoring: Any = getattr(sys, "monitoring", None)
_TOOL = 3
_C_FUNCTIONS = (BuiltinFunctionType, MethodDescriptorType)


class Monitored(Calls):
    """The counts by ``sys.monitoring`` (Python 3.12): a profiler there costs each function anew whenever it
    begins or ends."""

    def __init__(self) -> None:
        self._kinds = _Kinds()
        self._counts = False
        self._thread = _Thread(lambda: None)

    def begin(self) -> None:
        """Count, in this thread from here on."""
        super().begin()
        events = _monitoring.events
        if _monitoring.get_tool(_TOOL) is None:
            _monitoring.use_tool_id(_TOOL, "zerokit")
        _monitoring.register_callback(_TOOL, events.PY_START, self._python)
        _monitoring.register_callback(_TOOL, events.CALL, self._c)
        _monitoring.set_events(_TOOL, events.PY_START | events.CALL)

    def end(self) -> None:
        """Count no more."""
        super().end()
        if _monitoring.get_tool(_TOOL) is not None:
            _monitoring.free_tool_id(_TOOL)

    def _go_on(self, thread: _Thread) -> None:
        thread.counts = self._counts

    def _pause(self, thread: _Thread) -> None:
        thread.counts = False

    def _python(self, code: CodeType, offset: int) -> Any:
        kind = self._kinds.of(code)
        if kind in (_UNCOUNTED, _GENERATOR):
            return _monitoring.DISABLE
        thread = self._thread
        if thread.counts and (kind == _USUAL or self._counts_user()):
            thread.python += 1
        return None

    def _c(self, code: CodeType, offset: int, function: object, first: object) -> Any:
        kind = self._kinds.of(code)
        if kind == _UNCOUNTED:
            return _monitoring.DISABLE
        thread = self._thread
        if isinstance(function, _C_FUNCTIONS) and thread.counts and (
            kind != _CONTEXT or self._counts_user()
        ):  # fmt: skip
            thread.c += 1
        return None

    def _counts_user(self) -> bool:
        user = sys._getframe(3) if sys._getframe(2).f_back is not None else None
        return user is None or self._kinds.of(user.f_code) != _UNCOUNTED


def counter() -> Calls:
    """What counts best in this Python."""
    return Monitored() if sys.version_info >= (3, 12) else Calls()
