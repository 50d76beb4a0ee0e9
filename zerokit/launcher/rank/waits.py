"""How long a rank waits for its peers: its host by phase from the first optimizer step on, its GPU in sampled
steps.

Under NCCL the host only queues collectives; what stands still is the stream that computes. In a sampled step
an event is recorded on that stream when a phase ends, and before and after each call that lets it wait: a
collective, a work's or an event's ``wait``, and what blocks the host until other streams are done. Time
between two events is the phase's, waited or its own, on the GPU's clock. All ranks take as long for a step:
who waits less has done more by itself. (The durations of collectives, as PyTorch's flight recorder keeps
them, say less: a gather that was queued ahead lasts long on a rank that computes meanwhile. And to read the
recorder of a healthy job is not safe: torch 2.13 asks events outside its lock, FlightRecorderDetail.hpp:226.)

The wrappers are in place during a sampled step only. Which steps those are follows from their number, so that
the ranks sample the same ones, and from what a sample costs: 0.1 % of the time at most. Collectives that C++
starts and waits for by itself (functional collectives of compiled graphs) are not seen.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from zerokit.domain.phases import BEFORE_TRAINING
from zerokit.launcher.rank.phase_record import PhaseRecord
from zerokit.launcher.rank_file import Record

_FIRST = (3, 4, 5, 6)  # steps; the one that allocates and compiles is over
_LEAST_EVERY, _MOST_EVERY = 4, 4096  # powers of two: who samples less often shares all its steps
_SHARE = 0.001  # of the time that a sample may cost
_KEPT = 8  # samples
_MOST_UNREAD = 4
_MOST_MARKS = 200_000  # a ZeRO-3 step of 80 layers and 16 accumulated passes waits some 25,000 times

_Mark = tuple[Any, str, bool]
"""An event, the phase that the time before it belongs to, and whether it was waited."""


class _Sample:
    """One step: its events on the stream that computes."""

    def __init__(self, step: int, stream: Any) -> None:
        self.step, self.stream = step, stream
        self.stream_number = int(stream.cuda_stream)
        self.marks: list[_Mark] = []
        self.cost_seconds = 0.0
        self.began = time.monotonic()
        self.step_seconds = 0.0


class GpuWaits:
    """Seconds and waited seconds of each phase, in the steps that are sampled."""

    def __init__(self) -> None:
        self.in_charge = False
        """The ranks talk through NCCL: what their hosts wait says nothing."""
        self._phase: Callable[[], str] | None = None
        self._callers: list[dict[str, Any]] = []
        self._main_thread = threading.get_ident()
        self._wrappers: list[_Wrapper] = []
        self._sample: _Sample | None = None
        self._unread: deque[_Sample] = deque()  # their steps are queued; the GPU may not be there yet
        self._inside = False  # a wait within a wait is one
        self._events: list[Any] = []  # to be used again
        self._why_not = ""
        self._every = _LEAST_EVERY
        self._cost_seconds = 0.0
        self._samples: deque[tuple[int, dict[str, list[float]]]] = deque(maxlen=_KEPT)

    def attach(self, phase: Callable[[], str], callers: list[dict[str, Any]]) -> None:
        """Sample from now on. ``phase``: what the rank does now; ``callers``: the globals of the recorded
        collectives, whose ``original`` is torch's own function (:mod:`zerokit.launcher.rank.calls`)."""
        self._phase, self._callers = phase, callers

    def step_done(self, steps: int) -> None:
        """An optimizer step was applied, the ``steps``-th: a sampled one ends here, the next may begin."""
        if self._phase is None:
            return
        try:
            self._mark(self._phase(), False)
            self._end()
            self._read()
            is_due = steps + 1 in _FIRST or (steps + 1) % self._every == 0
            if is_due and len(self._unread) < _MOST_UNREAD:
                self._begin(steps + 1)
        except Exception as error:  # a driver that refuses, a torch that is built otherwise
            self._phase = None
            self._give_up(f"{type(error).__name__}: {error}")

    def charge(self, phase: str) -> None:
        """That phase ends, or begins anew."""
        if self._sample is not None and not self._inside and threading.get_ident() == self._main_thread:
            self._mark(phase, False)

    def account(self) -> Record:
        """``sampled_work``: by step, of each phase its seconds and those that were waited; or why not."""
        samples = {str(step): work for step, work in list(self._samples)}
        if not samples:
            return {"sampling": {"why_not": self._why_not}} if self._why_not else {}
        return {"sampled_work": samples,
                "sampling": {"every": self._every, "cost_seconds": round(self._cost_seconds, 6)}}  # fmt: skip

    # ---- a sample

    def _begin(self, step: int) -> None:
        torch = sys.modules["torch"]
        if not torch.cuda.is_initialized() or not torch.distributed.is_initialized():
            return
        self.in_charge = self.in_charge or "nccl" in str(torch.distributed.get_backend())
        if not self.in_charge:
            return
        if torch.cuda.is_current_stream_capturing():
            self._why_not = "steps are captured as CUDA graphs"
            return
        if not self._wrappers:
            self._wrappers = [
                *self._wrappers_of_streams(torch),
                *map(self._wrapper_of_collective, self._callers),
            ]
        self._sample = _Sample(step, torch.cuda.current_stream())
        self._inside = False
        for wrapper in self._wrappers:
            wrapper.put()
        self._mark("other", False)

    def _end(self) -> None:
        sample, self._sample = self._sample, None
        if sample is None:
            return
        for wrapper in self._wrappers:
            wrapper.remove()
        sample.step_seconds = time.monotonic() - sample.began
        self._unread.append(sample)

    def _give_up(self, why: str) -> None:
        self._sample, self._why_not = None, why[:200]
        for wrapper in self._wrappers:
            wrapper.remove()

    def _mark(self, phase: str, waited: bool) -> None:
        """What the stream did since the last mark was that phase's. Never raises."""
        sample = self._sample
        if sample is None:
            return
        began = time.perf_counter()
        try:
            cuda = sys.modules["torch"].cuda
            event = self._events.pop() if self._events else cuda.Event(enable_timing=True)
            event.record(sample.stream)
            sample.marks.append((event, phase, waited))
            if len(sample.marks) >= _MOST_MARKS:
                self._give_up(f"a step waits more than {_MOST_MARKS // 2:,} times")
        except Exception as error:  # the script meets the same error in its own call
            self._give_up(f"{type(error).__name__}: {error}")
        sample.cost_seconds += time.perf_counter() - began

    def _read(self) -> None:
        """The times of the sampled steps that the GPU is through with."""
        while self._unread and self._unread[0].marks[-1][0].query():
            sample, began = self._unread.popleft(), time.perf_counter()
            work: dict[str, list[float]] = {}
            waits = 0
            for (before, _, _), (event, phase, waited) in zip(sample.marks, sample.marks[1:]):  # noqa: B905
                milliseconds = before.elapsed_time(event)
                seconds = work.setdefault(phase, [0.0, 0.0])
                seconds[0] += 0.001 * milliseconds
                seconds[1] += 0.001 * milliseconds if waited else 0.0
                waits += waited
            self._events += [event for event, _, _ in sample.marks]
            self._cost_seconds = cost = sample.cost_seconds + time.perf_counter() - began
            self._every = _LEAST_EVERY
            while self._every * sample.step_seconds * _SHARE < cost and self._every < _MOST_EVERY:
                self._every *= 2
            if not waits:
                self._why_not = "no collective of these steps is started by Python"
            else:
                rounded = {name: [round(one, 5) for one in pair] for name, pair in work.items()}
                shown = {name: pair for name, pair in rounded.items() if name not in BEFORE_TRAINING}
                self._samples.append((sample.step, shown))

    # ---- what lets the stream wait

    def _wrappers_of_streams(self, torch: Any) -> list[_Wrapper]:
        cuda, work = torch.cuda, torch._C._distributed_c10d.Work
        waits = [(work, "wait", self._calling_stream), (cuda.Event, "wait", self._stream_of_wait)]
        blocks = [(cuda.Event, "synchronize"), (cuda.Stream, "synchronize"), (cuda, "synchronize")]
        waits += [(owner, name, lambda *args, **kwargs: True) for owner, name in blocks]
        return [
            _Wrapper(
                functools.partial(getattr, owner, name),
                functools.partial(setattr, owner, name),
                self._timed(getattr(owner, name), stands),
            )
            for owner, name, stands in waits
        ]

    def _wrapper_of_collective(self, caller: dict[str, Any]) -> _Wrapper:
        timed = self._timed(caller["original"], self._calling_stream)
        return _Wrapper(lambda: caller["original"], functools.partial(caller.__setitem__, "original"), timed)

    def _calling_stream(self, *args: Any, **kwargs: Any) -> bool:
        sample = self._sample
        stream = sys.modules["torch"].cuda.current_stream()
        return sample is not None and stream.cuda_stream == sample.stream_number

    def _stream_of_wait(self, event: Any, stream: Any = None) -> bool:
        sample = self._sample
        stream = stream if stream is not None else sys.modules["torch"].cuda.current_stream()
        return sample is not None and stream.cuda_stream == sample.stream_number

    def _timed(self, original: Callable[..., Any], stands: Callable[..., bool]) -> Callable[..., Any]:
        """``original`` between two marks, where ``stands`` says that the computing stream waits."""

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            phase = self._phase
            if self._inside or phase is None or not self._of_training(phase()) or not stands(*args, **kwargs):
                return original(*args, **kwargs)
            self._inside = True
            self._mark(phase(), False)
            try:
                return original(*args, **kwargs)
            finally:
                self._mark(phase(), True)
                self._inside = False

        return timed

    def _of_training(self, phase: str) -> bool:
        """The thread that trains, or autograd's, which runs the backward's hooks while that one waits."""
        return threading.get_ident() == self._main_thread or phase == "backward"


class _Wrapper:
    """A function and what stands in for it during a sampled step; what the script puts there itself stays."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None], timed: Any) -> None:
        self._get, self._put, self._original, self._timed = get, put, get(), timed

    def put(self) -> None:
        if self._get() is self._original:
            self._put(self._timed)

    def remove(self) -> None:
        if self._get() is self._timed:
            self._put(self._original)


class Waits:
    """Seconds inside collectives. With NCCL the host does not wait there: then the GPU's own are told."""

    def __init__(self) -> None:
        self.gpu = GpuWaits()
        self.running = [0.0]
        """Since the phase began. Who waits adds to it directly: it happens some hundred times a step."""
        self._seconds: dict[str, float] = {}  # of the phases before
        self._before: dict[str, float] | None = None  # of each phase, until the first step was done

    def step_done(self, steps: int, phases: Mapping[str, PhaseRecord]) -> None:
        """The ``steps``-th is applied; what came before the first (loading, compiling) is no measure."""
        if steps == 1:
            self._seconds.clear()
            self.running[0] = 0.0
            self._before = {name: record.seconds for name, record in phases.items()}
        self.gpu.step_done(steps)

    def charge(self, phase: str) -> None:
        """That phase ends, or begins anew: what was waited since the last call is its own."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + self.running[0]
        self.running[0] = 0.0
        self.gpu.charge(phase)

    def account(self, phases: Mapping[str, PhaseRecord], running: str, since: float) -> Record:
        """``work``: of each phase its seconds and those that were waited; ``running`` began at ``since``.
        Where the ranks talk through NCCL, ``sampled_work`` (:meth:`GpuWaits.account`)."""
        if self.gpu.in_charge:
            return self.gpu.account()
        if self._before is None:
            return {}
        work: dict[str, Any] = {}
        for name, record in phases.items():
            seconds = record.seconds - self._before.get(name, 0.0)
            waited = self._seconds.get(name, 0.0)
            if name == running:
                seconds += time.monotonic() - since
                waited += self.running[0]
            if name not in BEFORE_TRAINING:
                work[name] = [round(seconds, 4), round(waited, 4)]
        return {"work": work}
