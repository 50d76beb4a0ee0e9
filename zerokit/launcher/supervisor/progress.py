"""Is the run moving? Judged from what the ranks write about themselves, twice a second.

A rank may be quiet for good reasons: rank 0 evaluates or uploads while its peers wait at
a barrier; a model loads for minutes. So one quiet rank is no hang. A run hangs when

* no living rank has done anything new for the heartbeat, or
* a rank's ticker itself is silent (stopped, frozen) and the process uses no CPU, or
* a rank does nothing while its peers are two or more optimizer steps ahead of it.

"Something new" is a phase change, a step, another place in its Python code, data read or written (a
large checkpoint is one call), work of a process below it (a compiler, a download). Before the first
step, and after the script's last line, CPU time counts too (loading and
compiling happen below Python, uploads in threads); on CPU ranks always, and where a long call holds the
interpreter, but not for ever.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.launcher import processes
from zerokit.launcher.rank_file import RankTail, rank_file
from zerokit.launcher.supervisor.heartbeat_default import MOST_SECONDS, Heartbeat
from zerokit.launcher.verdict import why_hung
from zerokit.launcher.verdict.rank_view import RankView, view
from zerokit.report.training import find_straggler, findings
from zerokit.units import counted, format_gib, format_seconds, ranks_named, times


def follow(tail: RankTail, pid: int) -> None:
    """Where the path is gone, read on from the descriptor of process ``pid`` (Linux's ``/proc``)."""
    if os.path.lexists(tail.path):
        return
    removed = f"{tail.path.resolve()} (deleted)"
    with suppress(OSError):  # the process has ended, or is another user's
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if str(descriptor.readlink()) == removed:
                    tail.adopt(os.open(descriptor, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                    return


_BUSY_CORE_SHARE = 0.05
_HOLDS_THE_INTERPRETER_SECONDS = 2.0  # without a tick, though the ticker writes every 0.4 s
_BETWEEN_LOOKS_SECONDS = 0.3
_STALL_SECONDS = 2.0  # between two looks, though the next is due after half a second
_START_SECONDS = 180.0  # importing torch and deepspeed from a cold network disk
_UNMOVING_FACTOR = 5  # busy but never anywhere new: spinning in a collective during start-up
_MOST_ACTIVITIES = 2
_MOST_WARNINGS = 2  # of the status line; the report has all
_TAKES = {"building operator": "about a minute, once per environment"}
"""How long an activity takes, by what its words begin with."""


class SilentLook(NamedTuple):
    """The last look at a silent rank's process: when, its CPU time, and whether that had stood still."""

    at: float
    cpu_ticks: int
    frozen: bool


@dataclass(slots=True)
class RankProgress:
    """What is known of one rank. Times are monotonic seconds of this machine."""

    rank: int
    tail: RankTail
    heard_at: float | None = None
    idle_at_hearing: float = 0.0
    forgiven_seconds: float = 0.0  # that it may have waited for us, since it did anything new
    steps: int = 0
    progress: int = 0
    cpu_seconds: float = 0.0
    quiet_since_cpu: tuple[float, float] = (0.0, 0.0)  # when it went quiet, its CPU seconds then
    pid: int | None = None  # of a process on this machine
    host: str | None = None
    exited: bool = False
    ending: bool = False
    on_gpu: bool = True
    last: dict[str, Any] = field(default_factory=dict)
    silent_look: SilentLook | None = None

    def quiet_seconds(self, now: float) -> float:
        """Time since it did anything new."""
        return 0.0 if self.heard_at is None else self.idle_at_hearing + (now - self.heard_at)

    def silent_seconds(self, now: float) -> float:
        """Time since its ticker wrote."""
        return 0.0 if self.heard_at is None else now - self.heard_at


class Progress:
    """Follows the rank files of a run."""

    def __init__(self, run_dir: Path, ranks: int, heartbeat_seconds: float | None) -> None:
        self.heartbeat = Heartbeat(heartbeat_seconds)
        self._run_dir = run_dir
        self._spared = False  # quiet for long, for a reason that may pass
        self.ranks = {r: RankProgress(r, RankTail(rank_file(run_dir, r))) for r in range(ranks)}
        self.local_pids: dict[int, int] = {}
        """The ranks' processes on this machine, as the guard sees them."""
        self._here = socket.gethostname()
        self.started_at, self.started_clock = time.monotonic(), time.time()
        self._polled_at = self.started_at

    # ---- reading

    def poll(self) -> list[tuple[int, dict[str, Any]]]:
        """Read what was added; returns the new records that are not ticks, with their rank."""
        now = time.monotonic()
        if now - self._polled_at > _STALL_SECONDS:  # we were stopped (Ctrl-Z, a long line)
            for rank in self.ranks:
                self.forgive(rank, now - self._polled_at)
        self._polled_at = now
        events = []
        for state in self.ranks.values():
            if state.heard_at is None and state.rank in self.local_pids:
                follow(state.tail, self.local_pids[state.rank])
            for record in state.tail.poll():
                self._update(state, record, now)
                if record["type"] != "tick":
                    events.append((state.rank, record))
        return events

    def forgive(self, rank: int, seconds: float) -> None:
        """Count no idleness or silence of a rank that may have waited for us that long: who prints does."""
        state = self.ranks.get(rank)
        if state is not None and state.heard_at is not None:
            state.heard_at = min(state.heard_at + seconds, time.monotonic())
            state.forgiven_seconds += seconds

    def _update(self, state: RankProgress, record: dict[str, Any], now: float) -> None:
        if record["type"] == "start":
            state.host = record.get("host")
            state.on_gpu = record.get("device") != "cpu"
            state.pid = record.get("pid") if state.host == self._here else None
        if record["type"] not in ("start", "tick", "end"):  # the others say nothing of these
            return
        steps = int(record.get("steps") or 0)
        progress = int(record.get("progress") or 0)
        cpu_seconds = float(record.get("cpu_seconds") or state.cpu_seconds)
        has_progress = steps != state.steps or progress != state.progress
        state.forgiven_seconds *= not has_progress
        idle = max(0.0, float(record.get("idle_seconds") or 0.0) - state.forgiven_seconds)
        if has_progress or idle < state.idle_at_hearing:
            phase = record.get("phase")
            self.heartbeat.note_progress(state.rank, phase, state.idle_at_hearing, trained=steps > 0)
        if has_progress or idle < 1.0 or state.heard_at is None:
            state.quiet_since_cpu = (now, cpu_seconds)
        state.ending = bool(record.get("ending"))
        state.steps = max(steps, state.steps)
        state.progress, state.cpu_seconds = max(progress, state.progress), cpu_seconds
        state.heard_at, state.idle_at_hearing = now, idle
        state.silent_look = None
        if record["type"] in ("tick", "end"):
            state.last = record

    # ---- judging

    def hung(self, living: Iterable[int]) -> str | None:
        """Why the run counts as hung, or None. ``living``: ranks whose process has not ended."""
        now = time.monotonic()
        states = [self.ranks[rank] for rank in living if rank in self.ranks]
        if not states or self.heartbeat.off:
            return None
        heartbeat = self.heartbeat.seconds(state.rank for state in states)
        unheard = [s for s in states if s.heard_at is None]
        if unheard:
            if now - self.started_at < max(heartbeat, _START_SECONDS):
                return None
            return f"{_names(unheard)} started no Python within {format_seconds(now - self.started_at)}"
        silent = [s for s in states if s.silent_seconds(now) >= heartbeat and self._frozen(s)]
        if silent:
            seconds = format_seconds(silent[0].silent_seconds(now))
            return f"{_names(silent)}{self._location(silent)}: no sign of life for {seconds}"
        quiet = [s for s in states if self._quiet(s, now, heartbeat)]
        self._spared = len(quiet) == len(states) and self._may_pass(quiet, now)
        if self._spared:
            return None
        if len(quiet) == len(states):
            return self._explain(quiet, now)
        most_steps = max(state.steps for state in states)
        furthest_behind = [state for state in quiet if state.steps + 2 <= most_steps]
        return self._explain(furthest_behind, now) if furthest_behind else None

    def _may_pass(self, quiet: list[RankProgress], now: float) -> bool:
        """Whether what they wait for may come yet: no two of them are at odds, and nobody gave a limit."""
        if not self.heartbeat.adapts or min(s.quiet_seconds(now) for s in quiet) >= MOST_SECONDS:
            return False
        living = [state.rank for state in quiet]
        cause = why_hung.explain(self.views(self._run_dir, self.stopped(living), None))
        return cause is not None and cause.may_pass

    def _quiet(self, state: RankProgress, now: float, heartbeat: float) -> bool:
        seconds = state.quiet_seconds(now)
        if seconds < heartbeat:
            return False
        if seconds > _UNMOVING_FACTOR * heartbeat:
            return True
        if state.silent_seconds(now) > _HOLDS_THE_INTERPRETER_SECONDS and not self._frozen(state):
            return False
        # a host that waits for a GPU may spin; one that waits in Gloo does not
        if state.steps > 0 and not state.ending and state.on_gpu:
            return True
        since, cpu_then = state.quiet_since_cpu
        elapsed = (state.heard_at or 0.0) - since
        return elapsed <= 0 or (state.cpu_seconds - cpu_then) / elapsed <= _BUSY_CORE_SHARE

    def _frozen(self, state: RankProgress) -> bool:
        """Stopped, or using no CPU; a busy process that holds the interpreter's lock is neither."""
        before = processes.read_process(state.pid) if state.pid is not None else None
        if before is None:
            return True  # on another machine: silence is all we can go by
        if before.state in "Tt":
            return True
        now, look = time.monotonic(), state.silent_look
        if look is None or now - look.at >= _BETWEEN_LOOKS_SECONDS:
            frozen = look is not None and before.cpu_ticks - look.cpu_ticks <= 1
            state.silent_look = look = SilentLook(now, before.cpu_ticks, frozen)
        return look.frozen

    def word(self, living: Iterable[int]) -> str | None:
        """What to tell of a run that is quiet for a minute, but has shown that it may be for longer."""
        now = time.monotonic()
        states = [self.ranks[rank] for rank in living if rank in self.ranks]
        if not states or self.heartbeat.off:
            return None
        limit = MOST_SECONDS if self._spared else self.heartbeat.seconds(state.rank for state in states)
        if not self.heartbeat.word(now, min(state.quiet_seconds(now) for state in states), limit):
            return None
        return f"{self._explain(states, now)}; counts as hung after {format_seconds(limit)} (--heartbeat)"

    def views(
        self, run_dir: Path, stopped: Container[int], records: Mapping[int, Mapping[str, Any]] | None
    ) -> list[RankView]:
        """What each rank was doing; ``records``: of its collectives, where not the newest ones count."""
        newest = self.records("calls") if records is None else records
        flights = self.records("flight") if records is None else {}
        views = []
        for rank, state in self.ranks.items():
            known = RankView(
                rank=rank, steps=state.steps, exited=state.exited, stopped=rank in stopped,
                ending=state.ending, left_at=state.last.get("left_at"),
            )  # fmt: skip
            views.append(view(run_dir, known, newest.get(rank), flights.get(rank)))
        return views

    def counts(self) -> dict[int, tuple[int, int]]:
        """How far each rank has come: optimizer steps, and all that counts as something new."""
        return {rank: (state.steps, state.progress) for rank, state in self.ranks.items()}

    def stopped(self, living: Iterable[int]) -> frozenset[int]:
        """Ranks of this machine whose process is stopped (SIGSTOP, a debugger)."""
        pids = {rank: self.ranks[rank].pid for rank in living if rank in self.ranks}
        by_rank = {r: processes.read_process(pid) for r, pid in pids.items() if pid is not None}
        return frozenset(rank for rank, process in by_rank.items() if process and process.state in "Tt")

    def _explain(self, quiet: list[RankProgress], now: float) -> str:
        seconds = min(state.quiet_seconds(now) for state in quiet)
        least = min((state.steps, state.progress) for state in quiet)
        first = [state for state in quiet if (state.steps, state.progress) == least]
        subject = _names(first) + self._location(first)
        remark = " (furthest behind)" if len(first) < len(quiet) else ""
        doing = next((f", {state.last['activity']}" for state in first if state.last.get("activity")), "")
        return f"{subject}{remark}: no progress for {format_seconds(seconds)}, at step {least[0]}{doing}"

    def _location(self, states: list[RankProgress]) -> str:
        """`` on node-2``, where the run has several hosts and these ranks are all on one."""
        hosts = {state.host for state in states}
        several = len({state.host for state in self.ranks.values()} - {None}) > 1
        return f" on {hosts.pop()}" if several and len(hosts) == 1 and None not in hosts else ""

    # ---- showing

    @property
    def steps(self) -> int:
        """Optimizer steps done by the rank that has done most."""
        return max((state.steps for state in self.ranks.values()), default=0)

    def reporting(self) -> frozenset[int]:
        """Ranks that have written something."""
        return frozenset(rank for rank, state in self.ranks.items() if state.heard_at is not None)

    def records(self, kind: str) -> dict[int, dict[str, Any]]:
        """The newest record of a kind, by rank."""
        return {r: s.tail.records[kind] for r, s in self.ranks.items() if kind in s.tail.records}

    def close(self) -> None:
        """Close the ranks' files."""
        for state in self.ranks.values():
            state.tail.close()

    def engine_and_steps(self) -> dict[str, Any]:
        """Of the first rank that tells: what its engine runs with, its optimizer steps and micro-steps."""
        for state in self.ranks.values():
            if "engine" in state.tail.records:
                counts = {
                    name: int(state.last.get(name) or 0) for name in ("micro_steps", "most_micro_steps")
                }
                return {"engine": state.tail.records["engine"], "steps": state.steps, **counts}
        return {"engine": None, "steps": 0}

    def line(self, predicted_peak_bytes: int | None) -> str:
        """One line for people: step, speed, and the fullest rank against the prediction."""
        reporting = [state for state in self.ranks.values() if state.heard_at is not None]
        if not reporting:
            took = format_seconds(time.monotonic() - self.started_at)
            return f"starting {counted(len(self.ranks), 'rank')} ({took})"
        parts = [f"{len(reporting)} of {len(self.ranks)} ranks"] if len(reporting) < len(self.ranks) else []
        phases = {str(state.last.get("phase")) for state in reporting if state.last.get("phase")}
        named = ("ranks in " if len(phases) > 1 else "") + ", ".join(sorted(phases)[:3])
        parts.append(f"step {self.steps}" + (f" ({named})" if phases else ""))
        parts.extend(_activities(reporting)[:_MOST_ACTIVITIES])
        paces = [state.last.get("median_step_seconds") for state in self.ranks.values()]
        if measured := [pace for pace in paces if isinstance(pace, float | int)]:
            parts.append(f"{format_seconds(max(measured))}/step")  # of the slowest rank: the report's figure
        parts.extend(self._memory(reporting, predicted_peak_bytes))
        parts.extend(_warnings(reporting, predicted_peak_bytes)[:_MOST_WARNINGS])
        return " · ".join(parts)

    @property
    def activities(self) -> frozenset[str]:
        """What ranks are busy with outside of steps, whichever ranks those are."""
        return frozenset(
            str(state.last["activity"])
            for state in self.ranks.values()
            if not state.exited and state.last.get("activity")
        )

    def _memory(self, reporting: list[RankProgress], predicted_peak_bytes: int | None) -> list[str]:
        on_gpu = [s for s in reporting if s.last.get("peak_allocated_bytes")]
        name = "peak_allocated_bytes" if on_gpu else "host_rss_bytes"
        states = [s for s in (on_gpu or reporting) if s.last.get(name)]
        if not states:
            return []
        worst = max(states, key=lambda state: int(state.last[name]))
        subject = f"most memory: rank {worst.rank}," if len(states) > 1 else f"rank {worst.rank}:"
        text = f"{subject} {format_gib(worst.last[name])} {'GPU peak' if on_gpu else 'host memory'}"
        if on_gpu and predicted_peak_bytes:
            text += f" of {format_gib(predicted_peak_bytes)} predicted"
        return [text]


def _activities(states: list[RankProgress]) -> list[str]:
    """The long phases that ranks are in, by name: ``rank 0 building operator fused_adam``."""
    by_words: dict[str, list[RankProgress]] = {}
    for state in states:
        if not state.exited and (words := state.last.get("activity")):
            by_words.setdefault(str(words), []).append(state)
    everyone = sum(not state.exited for state in states)
    activities = []
    for words, busy in by_words.items():
        takes = next((f" ({takes})" for start, takes in _TAKES.items() if words.startswith(start)), "")
        activities.append(f"{'' if len(busy) == everyone else f'{_names(busy)} '}{words}{takes}")
    return activities


def _warnings(states: list[RankProgress], predicted_peak_bytes: int | None) -> list[str]:
    """What should be known while there is time to act: memory above the prediction, running full, leaking."""
    warnings = []
    peaks = {state.rank: int(state.last.get("peak_allocated_bytes") or 0) for state in states}
    above = [
        rank for rank, peak in peaks.items() if predicted_peak_bytes and peak > 1.05 * predicted_peak_bytes
    ]
    if above and predicted_peak_bytes:
        worst = max(above, key=lambda rank: peaks[rank])
        warnings.append(
            f"! rank {worst} is {peaks[worst] / predicted_peak_bytes - 1:.0%} above the prediction"
        )
    full = [state for state in states if state.last.get("alloc_retries")]
    if full:
        warnings.append(f"! {_names(full)} ran full {times(max(s.last['alloc_retries'] for s in full))}")
    ticks = {state.rank: state.last for state in states}
    warnings += [f"! {finding.what}" for finding in findings(ticks)]
    if (straggler := find_straggler(ticks)) is not None:
        warnings.append(f"! {straggler}")
    leaking = [state for state in states if state.last.get("leaks")]
    if leaking:
        leak = leaking[0].last["leaks"][0]
        rate = format_gib(float(leak.get("bytes_per_step") or 0), 3)
        warnings.append(f"! suspected leak of {leak.get('memory')} memory, {_names(leaking)}: {rate} a step")
    return warnings


def _names(states: list[RankProgress]) -> str:
    return ranks_named([state.rank for state in states])
