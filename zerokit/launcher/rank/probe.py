"""What one rank knows about its own memory: peaks by phase, steps, growth.

Runs inside the training process, so it is standard library only, never raises into the script, and
does its work at phase boundaries (microseconds) and in the ticker thread.

Not every step is split into its phases (:mod:`zerokit.launcher.rank.split_budget`). One that is not is
measured whole: its peak reaches the run's, and is no phase's, because nobody saw in which one it was.

Phases: ``load`` until the first engine is made; ``init`` while one is; ``forward`` from the engine's forward
(without one, the model's) to the backward, so with a loss computed outside the model; ``backward`` until the
optimizer step; ``step``; ``eval`` from a forward without gradients until something else begins, and during an
evaluation loop; ``generate`` and ``save`` while that is done; ``other`` for the rest; and those the script
names with ``zerokit.phase``, which are measured beside these.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from zerokit.domain.phases import BEFORE_TRAINING, TRAINING_PHASES
from zerokit.instrument import engine_facts
from zerokit.instrument.training_facts import TrainingFacts
from zerokit.launcher.rank.cuda_memory import CudaMemory, Peaks
from zerokit.launcher.rank.movement import HostMemory, Movement
from zerokit.launcher.rank.phase_record import Identity, PhaseRecord, StepTimes, gpu_account
from zerokit.launcher.rank.training_watch import TrainingWatch
from zerokit.launcher.rank.waits import Waits
from zerokit.launcher.rank_file import RankWriter, Record, rank_file

SPLIT_SHARE = 0.0005
"""Of the training thread's time, at most so much goes into reading memory at phase boundaries."""
_MOST_SPARE_SECONDS = 0.02  # what a long wait may save up
_ALWAYS_READ = 128  # boundaries: some thirty steps, so that a short run is split throughout


class SplitBudget:
    """The time that may go into reading memory at the engine's phase boundaries: whether it is read now."""

    def __init__(self) -> None:
        self.splitting = True
        self._step = 0  # the steps done when that was decided
        self._decided = time.monotonic()
        self._spare_seconds = 0.0
        self._reads = 0

    def decide(self, phase: str, steps: int) -> None:
        """At the first forward of a step, and at each without gradients: is there time to split it?"""
        if phase == "forward" and steps == self._step and steps:
            return  # a further micro-batch of the same step
        now = time.monotonic()
        earned_seconds = SPLIT_SHARE * (now - self._decided)
        self._step, self._decided = steps, now
        self._spare_seconds = min(_MOST_SPARE_SECONDS, self._spare_seconds + earned_seconds)
        self.splitting = self._spare_seconds > 0 or self._reads < _ALWAYS_READ

    def spend(self, seconds: float) -> None:
        """Memory was read at a boundary, which took so long."""
        self._reads += 1
        if self._reads > _ALWAYS_READ:
            self._spare_seconds -= seconds


GPU_LEAK_BYTES = 8 << 20
HOST_LEAK_BYTES = 64 << 20

_POINTS = 256
_WARM_UP_STEPS = 10  # allocator caches, autotuning and lazily made optimizer states settle in these
_WINDOWS = 8
_PER_WINDOW = 3


class GrowthWatch:
    """Watches what is in use after each step, in bounded space.

    A leak raises the floor: what is left after a step rises and never comes back. So the smallest
    value of each of eight equal stretches after the warm-up must rise from one to the next, by at
    least ``threshold_bytes`` in all and still in the second half (a cache that fills up stops).
    """

    def __init__(self, threshold_bytes: int) -> None:
        self.threshold_bytes = threshold_bytes
        self._points: list[tuple[int, int]] = []  # (step, smallest value of the stride that begins there)
        self._stride = 1
        self._pending: list[tuple[int, int]] = []

    def observe(self, step: int, used_bytes: int) -> None:
        """Note what is in use after optimizer step ``step`` (counted from 1)."""
        if step <= _WARM_UP_STEPS:
            return
        self._pending.append((step, used_bytes))
        if len(self._pending) < self._stride:
            return
        self._points.append((self._pending[0][0], min(used for _, used in self._pending)))
        self._pending.clear()
        if len(self._points) >= _POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(first[0], min(first[1], second[1])) for first, second in pairs]
            self._stride *= 2

    def growth(self) -> Record | None:
        """The growth so far, as the rank file has it; None where there is none to speak of."""
        size = len(self._points) // _WINDOWS
        if size < _PER_WINDOW:
            return None
        used = self._points[-size * _WINDOWS :]
        floors = [min(value for _, value in used[i * size : (i + 1) * size]) for i in range(_WINDOWS)]
        steps = [used[i * size][0] for i in range(_WINDOWS)]
        rises = all(later > earlier for earlier, later in pairwise(floors))
        total = floors[-1] - floors[0]
        late = floors[-1] - floors[_WINDOWS // 2]
        if not rises or total < self.threshold_bytes or late < total / 4:
            return None
        return {
            "bytes_per_step": round(total / (steps[-1] - steps[0])), "growth_bytes": total,
            "first_step": steps[0], "last_step": used[-1][0],
        }  # fmt: skip


_MAX_PHASES = 64  # a script that invents a name each step must not fill memory
_MAX_NOTES, _MOST_CHECKPOINTS = 200, 16
_CLEAN_EXIT = ("finished", 0)
_NOBODYS = (*BEFORE_TRAINING, "other")  # phases that one which the script names replaces


class Probe:
    """Collects one rank's figures and writes them to its file."""

    def __init__(self, identity: Identity, run_dir: Path) -> None:
        self.identity = identity
        self.run_dir = run_dir
        self.after_step: Callable[[int], None] | None = None
        self.writer = RankWriter(rank_file(run_dir, identity.rank), identity.rank)
        self.cuda: CudaMemory | None = None
        self.host = HostMemory()
        self.phase = "load"
        self.phases: dict[str, PhaseRecord] = {"load": PhaseRecord(count=1)}
        self.parts: list[str] = []  # init, eval, generate, save that are under way, outermost first
        self._left_by: tuple[int, str] | None = None  # the last exception that left one, and which
        self.named: list[str] = []  # phases that the script opened, outermost first
        self.steps_counted_by = "engine"  # or "optimizer", where the script trains without an engine
        self.position = (0, 0)  # optimizer steps that are done, backward passes that were begun
        self.skipped_steps = 0  # whose gradients were not finite: DeepSpeed leaves the weights as they are
        self.progress = 0
        self.baseline_host_rss_bytes: int | None = None
        self.failure: Record | None = None
        self.observed = engine_facts.EngineFacts()
        self.gpu_status: str | None = None  # the hook on torch put nothing: no_cuda_build, hook_failed
        self.events: list[Record] = []
        self.notes: list[Record] = []
        self.peak = PhaseRecord()
        self.peak_device_used_bytes = 0
        self._lock = threading.RLock()
        self._started = self._phase_began = time.monotonic()
        self._step_times = StepTimes()
        self._growth = {"gpu": GrowthWatch(GPU_LEAK_BYTES), "host": GrowthWatch(HOST_LEAK_BYTES)}
        self._host_rss_bytes, self._host_mark_bytes = self.host.read()
        self.main_thread = threading.get_ident()  # which trains
        self.movement = Movement(self.main_thread, self.host)
        self._budget = SplitBudget()
        self.waits, self.learning, self.training = Waits(), TrainingWatch(), TrainingFacts()
        self.ending = False  # the script ran to its end; its threads and exit handlers may not have
        self._step_ended = False  # … and what is in use after it is to be noted at the next boundary
        self._mixed = False  # whether a boundary was passed unread since the last reading
        self.is_rank = True  # this process is the rank itself, not a child that it forked
        self.new_phase: Callable[[], None] = lambda: None  # called when a phase occurs for the first time
        self.last_words: Callable[[], Record] | None = None  # what else is written before the last line

    # -- life ------------------------------------------------------------------------------------

    def disown(self) -> None:
        """In a forked child: it is no rank. Everything here becomes a pass-through."""
        self.is_rank = False
        self._lock = threading.RLock()  # the ticker may have held it at the fork
        if self.cuda is not None:
            self.cuda.uninstall()

    # -- phases ----------------------------------------------------------------------------------

    def enter(self, phase: str, *, again: bool = False) -> None:
        """The engine begins ``phase``; what was reached since the last change belongs to the one before.

        ``again``: it goes on after something in between. What an evaluation, a generation or the like
        does with the engine is part of it, unless it trains.
        """
        if not self.is_rank:
            return
        if self.parts and phase not in TRAINING_PHASES:
            phase = self.parts[-1]
        if phase == self.phase:
            if phase == "eval":  # one forward after another
                self._record(phase).count += not self.parts
                self.progress += 1
            return
        with self._lock:
            if phase in ("forward", "eval") and not again:
                self._budget.decide(phase, self.steps)
            if self._budget.splitting:
                self._settle()
            else:
                self._note_time()
                self._mixed = True
            self.phase = phase
            self._left_by = None
            self._record(phase).count += not again
            self.progress += 1

    def begin(self, phase: str) -> str | None:
        """A call begins that is ``phase`` as a whole; hand to :meth:`finish` what this returns."""
        if not self.is_rank or self.parts[-1:] == [phase] or threading.get_ident() != self.main_thread:
            return None
        with self._lock:
            self._settle()
            before, self.phase, self._left_by = self.phase, phase, None
            self.parts.append(phase)
            self._record(phase).count += 1
            self.progress += 1
        return before

    def finish(self, before: str | None, error: BaseException | None = None) -> None:
        """That call ended, or ``error`` left it; what was going on around it goes on."""
        if before is None or not self.is_rank:
            return
        with self._lock:
            self._settle()
            part = self.parts.pop()
            if error is not None and (self._left_by is None or self._left_by[0] != id(error)):
                self._left_by = (id(error), part)  # the innermost call that it leaves
            self.phase = "other" if part == "init" and before == "load" else before
            self.progress += 1

    @contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """A call that is ``phase`` as a whole, from here to there."""
        before = self.begin(phase)
        try:
            yield
        except BaseException as error:
            self.finish(before, error)
            raise
        self.finish(before)

    def phase_left_by(self, error: BaseException) -> str:
        """The phase in which an exception was raised, though its way out has ended that phase."""
        if self._left_by is not None and self._left_by[0] == id(error):
            return self._left_by[1]
        return self.named[-1] if self.named else self.phase

    @contextmanager
    def named_phase(self, name: str) -> Iterator[None]:
        """A phase that the script names; it may hold others and the engine's own phases."""
        with self._lock:
            self._settle()
            self.named.append(name)
            self._record(name).count += 1
            self.progress += 1
        try:
            yield
        finally:
            with self._lock:
                self._settle()
                if self.named:
                    self.named.pop()
                self.progress += 1

    @property
    def steps(self) -> int:
        """Optimizer steps that are done."""
        return self.position[0]

    @property
    def micro_steps(self) -> int:
        """Backward passes that were begun, one for each micro-batch."""
        return self.position[1]

    def step_done(self) -> None:
        """An optimizer step was applied: note its time; its memory is read when the phase ends."""
        if not self.is_rank:
            return
        with self._lock:
            self.position = (self.steps + 1, self.micro_steps)
            if self.steps_counted_by == "engine":  # DDP's reducer waits where nothing of ours sees it
                self.waits.step_done(self.steps, self.phases)
            self._step_times.done(self.micro_steps)
            self._step_ended = True
        if self.after_step is not None:
            self.after_step(self.steps)

    def sample_host(self) -> None:
        """Between phase changes: charge resident memory to the running phases."""
        with self._lock:
            self._note_host()

    def foreign_reset(self, device: int, peaks: Peaks) -> None:
        """Somebody else resets the peak statistics: what they held is kept first."""
        with self._lock:
            self._charge(peaks)
            self._mixed = self._mixed and len(self.cuda.devices if self.cuda else ()) > 1

    def _record(self, name: str) -> PhaseRecord:
        if name not in self.phases:
            name = name if len(self.phases) < _MAX_PHASES else "other"
            self.new_phase()
        return self.phases.setdefault(name, PhaseRecord())

    def _running(self) -> list[PhaseRecord]:
        if not self.named:
            return [self.peak, self._record(self.phase)]
        phases = [] if self.phase in _NOBODYS else [self.phase]
        return [self.peak, *(self._record(name) for name in dict.fromkeys([*self.named, *phases]))]

    def _note_time(self) -> None:
        now = time.monotonic()
        for record in self._running():
            record.seconds += now - self._phase_began
        self._phase_began = self.movement.seconds = now
        self.waits.charge(self.phase)

    def _settle(self) -> None:
        """Charge the time and the peaks since the last boundary to the phases that were running."""
        self._note_time()
        began = time.perf_counter()
        harvested = self.cuda.harvest() if self.cuda is not None else {}
        for peaks in harvested.values():
            self._charge(peaks)
        if not harvested:  # beside a GPU the ticker's samples of the host do
            self._note_host()
        self._mixed = False
        if self._step_ended:
            self._step_ended = False
            self._growth["host"].observe(self.steps, self._host_rss_bytes)
            if self.cuda is not None and self.cuda.devices:
                used = sum(state.allocated_bytes for state in self.cuda.devices.values())
                self._growth["gpu"].observe(self.steps, used)
        self._budget.spend(time.perf_counter() - began)

    def _charge(self, peaks: Peaks) -> None:
        """To what was running since the last reading: the phases the script named were all the while."""
        running = self._running()
        if self._mixed:
            running = [self.peak, *(self._record(name) for name in self.named)]
        for record in running:
            record.add(peaks)

    def _note_host(self) -> None:
        self._host_rss_bytes, mark = self.host.read()
        rose_here = mark > self._host_mark_bytes and not self._mixed
        reached = mark if rose_here else self._host_rss_bytes
        self._host_mark_bytes = max(self._host_mark_bytes, mark)
        for record in self._running():
            record.add_host(reached)
        self.peak.peak_host_rss_bytes = max(self.peak.peak_host_rss_bytes, self._host_mark_bytes)

    # -- what is known ---------------------------------------------------------------------------

    def watch(self) -> None:
        """Called by the ticker: read what costs more, and see whether the main thread moved."""
        allocated = False
        if self.cuda is not None and self.cuda.ready():
            before = sum(state.allocations for state in self.cuda.devices.values())
            self.cuda.look_for_devices()
            with self._lock:
                for peaks in self.cuda.peek().values():
                    self._charge(peaks)
            self.cuda.measure_devices()
            states = list(self.cuda.devices.values())
            used = max((state.device_used_bytes or 0 for state in states), default=0)
            self.peak_device_used_bytes = max(self.peak_device_used_bytes, used)
            allocated = sum(state.allocations for state in states) != before
        self.movement.look(allocated)

    def account(self, type_: str) -> Record:
        """Everything known now, as a record of type ``type_`` (``tick`` or ``end``)."""
        now = time.monotonic()
        on_gpu = self.cuda is not None and bool(self.cuda.devices)
        with self._lock:
            self._note_host()
            record: Record = {
                "type": type_, "rank": self.identity.rank, "pid": self.identity.pid, "time": time.time(),
                "uptime_seconds": round(now - self._started, 3),
                "phase": self.named[-1] if self.named else self.phase,
                "progress": self.progress,
                "idle_seconds": round(now - self.movement.seconds, 3),
                "cpu_seconds": round(time.process_time(), 3),
                "ending": self.ending, "activity": self.movement.doing,
                "steps": self.steps, "micro_steps": self.micro_steps,
                "host_rss_bytes": self._host_rss_bytes,
                "peak_host_rss_bytes": self.peak.peak_host_rss_bytes,
                "baseline_host_rss_bytes": self.baseline_host_rss_bytes,
                **gpu_account(self.cuda, self.peak, self.peak_device_used_bytes,
                              device=self.identity.device, status=self.gpu_status),
                **self._step_times.account(), **self.learning.account(), **self.training.account(),
                **self.waits.account(self.phases, self.phase, self._phase_began),
                "phases": {name: record.account(on_gpu) for name, record in self.phases.items()},
            }  # fmt: skip
            grown = {memory: watch.growth() for memory, watch in self._growth.items()}
        leaks = [{"memory": memory, **growth} for memory, growth in grown.items() if growth is not None]
        if self.steps_counted_by != "engine":
            record["steps_counted_by"] = self.steps_counted_by
        if self.skipped_steps:
            record["skipped_steps"] = self.skipped_steps
        if leaks:
            record["leaks"] = leaks
        if self.writer.failed_writes:
            record["failed_writes"] = self.writer.failed_writes
        return record

    def take_recent_peaks(self) -> dict[str, tuple[int, int]]:
        """By phase: peak allocated and resident bytes since the last call."""
        with self._lock:
            return {name: record.take_recent() for name, record in self.phases.items()}

    # -- records beside the ticks ----------------------------------------------------------------

    def event(self, record: Record) -> None:
        """Write an event at once and keep it for when the file is compacted."""
        if not self.is_rank:
            return
        common = {"rank": self.identity.rank, "pid": self.identity.pid, "time": time.time()}
        full = {"type": record["type"], **common, **record}
        records = self.notes if record["type"] == "note" else self.events
        if record["type"] == "engine":  # the newest says it all
            records[:] = [entry for entry in records if entry["type"] != "engine"]
        if record["type"] == "checkpoint":  # the newest may be needed, none of them may be lost to the others
            old = [entry for entry in records if entry["type"] == "checkpoint"]
            records[:] = [entry for entry in records if entry not in old[: 1 - _MOST_CHECKPOINTS]]
        if len(records) < _MAX_NOTES:
            records.append(full)
            self.writer.write(full)

    def tell_of_engine(self) -> None:
        """Write what the engine runs with, where that is news."""
        news = self.observed.news()
        if news is not None:
            self.event(news)

    def snapshot(self) -> dict[str, Any]:
        """What is in use now, in bytes; the GPU's figures are None without one."""
        self.watch()
        account = self.account("note")
        names = ("allocated_bytes", "reserved_bytes", "device_used_bytes", "host_rss_bytes",
                 "peak_allocated_bytes", "peak_reserved_bytes", "peak_host_rss_bytes")  # fmt: skip
        return {"phase": account["phase"], "step": account["steps"], **{n: account.get(n) for n in names}}

    def end(
        self,
        state: str,
        exit_code: int | None,
        signal: int | None = None,
        reason: str | None = None,
        left_at: str | None = None,
        left_in: str | None = None,
    ) -> None:
        """Write the last line. Only the first call counts. ``left_at``: where the script called ``os._exit``
        before its end; ``left_in``: in which call."""
        if not self.is_rank:
            return
        with self._lock:
            self._settle()
        self.tell_of_engine()
        if self.last_words is not None:
            self.writer.write(self.last_words())
        record = self.account("end")
        failure = self.failure or {}
        if failure and (state, exit_code) == _CLEAN_EXIT:
            state = "failed"
        record.update(state=state, exit_code=exit_code, signal=signal, error=failure.get("error") or reason)
        if left_at is not None:
            record |= {"left_at": left_at, "left_in": left_in}
        self.writer.write(record, last=True)


ACTIVE: Probe | None = None
"""This process's probe, where it is a launched rank."""
