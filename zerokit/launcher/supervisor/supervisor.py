"""Run a launcher under the guard and watch it until nothing is left of it.

The supervisor is zerokit's own process. It reads the ranks' output and their files, gets every
exit from the guard, decides when the run is over (a rank failed, it hangs, the user
wants it to end, the launcher is lost) and how it ended (:mod:`zerokit.launcher.verdict.verdict`).
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerokit.launcher import processes, rank_start
from zerokit.launcher import run_folder as folder_module
from zerokit.launcher.launch import Launch
from zerokit.launcher.nodes.gather import OtherMachines
from zerokit.launcher.rank_file import STACKS_SIGNAL
from zerokit.launcher.secrets import Secrets
from zerokit.launcher.supervisor import guard as guard_module
from zerokit.launcher.supervisor.hang_inquiry import HangInquiry
from zerokit.launcher.supervisor.output import PipeReader, Terminal
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict import verdict
from zerokit.launcher.verdict.evidence import Evidence, RankExit, oom_kills
from zerokit.launcher.verdict.verdict import Verdict, judge, launcher_status
from zerokit.launcher.verdict.why_broken import explain_failure
from zerokit.notes import warning, with_level
from zerokit.report.schema import Outcome, RankState
from zerokit.report.what_ran import unlike_plan
from zerokit.temporary import temporary_folder
from zerokit.units import counted, format_seconds

_SECONDS = 30.0
_SAME_ACTIVITY_SECONDS = 300.0  # a build or a download that goes on is no news


class PlainStatus:
    """Every half minute; while ranks are busy with what was said already, every five."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SECONDS
        self._said: frozenset[str] = frozenset()
        self._said_until = 0.0

    def is_due(self, now: float, activities: frozenset[str]) -> bool:
        """Whether to write a line now, which then counts as written. ``activities``: what ranks are busy with
        outside of steps."""
        if now < self._next:
            return False
        self._next = now + _SECONDS
        if activities and activities <= self._said and now < self._said_until:
            return False
        self._said, self._said_until = activities, now + _SAME_ACTIVITY_SECONDS
        return True


FAILURE_GRACE_SECONDS = 1.0  # peers of a failed rank cannot save anything: their collectives are broken
ERROR_EXIT_SECONDS = 10.0  # for a rank to end after an exception that nobody caught
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)  # to the ranks on this machine: a script saves on them
_CLOCK_SLACK_SECONDS = 1.0  # what keeping a clock right moves it by

_LINE_PREFIX = re.compile(r"^\[rank\d+\]:\s*")  # torch's own, of an uncaught exception
_POLL_SECONDS = 0.5
_FEWEST_STEPS = 2  # before a run is held to its plan: a first step may be odd
_FIRST_POLL_SECONDS = 0.1  # until all ranks are heard: a file that is removed before it is open is lost


class Supervisor:
    """One supervised launch; :meth:`run` does it all."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.terminal = Terminal()
        self.progress = Progress(launch.run_dir, launch.expected_ranks, launch.options.heartbeat)
        self.seen = begin(launch)
        self.errors: dict[int, float] = {}  # rank -> when its uncaught exception was read, monotonic
        self.selector = selectors.DefaultSelector()
        self.streams = PipeReader(
            launch.run_dir / folder_module.LOGS_FOLDER, self.selector, self.terminal,
            Secrets(launch.environment, launch.options.target.arguments), launch.options.show,
            self._forgive,
        )  # fmt: skip
        self.guard: subprocess.Popen[bytes] | None = None
        placement = launch.placement
        self.remote = OtherMachines(
            launch.run_dir, placement.remote_hosts, placement.unshared_hosts, placement.slurm_job,
            placement.alive_seconds,
        )  # fmt: skip
        self.connection: socket.socket | None = None
        self.buffer = b""
        self.stopping = False
        self.over = False
        self.inquiry = HangInquiry(launch.run_dir, self.progress)
        self.signals: list[int] = []
        self._warned: set[str] = set()
        self._next_poll = time.monotonic()
        self._plain_status = PlainStatus()

    # ---- the whole

    def run(self) -> Ended:
        """Start, watch, and end; returns when no descendant is left."""
        old_wakeup, old_handlers = self._catch_signals()
        try:
            with temporary_folder("run") as folder:
                self.remote.start()
                self._start(folder)
                while not self.over:
                    self._turn()
                self.streams.drain(but=self.connection)
                self.progress.poll()
                if silent := self.remote.end():
                    self._warn(
                        f"no answer from {', '.join(silent)}: ranks that are alive there end themselves "
                        f"{self.remote.alive_seconds:.0f} s after they last heard from here"
                    )
                self.progress.poll()
        finally:
            self.inquiry.end()
            self._end_guard()
            self.remote.stop()
            self.terminal.status("")
            self.terminal.close()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
        dropped = self.streams.dropped_bytes + self.terminal.dropped_bytes
        ended = conclude(self.launch, self.seen, self.progress, self.streams.tails, dropped)
        self.progress.close()
        return ended

    def _turn(self) -> None:
        for key, _ in self.selector.select(min(_POLL_SECONDS / 2, self._next_poll - time.monotonic())):
            handler: Callable[[], None] = key.data
            handler()
        self._heed_signals()
        if time.monotonic() >= self._next_poll:
            unheard = len(self.progress.reporting()) < self.launch.expected_ranks
            self._next_poll = time.monotonic() + (_FIRST_POLL_SECONDS if unheard else _POLL_SECONDS)
            self._look_at_ranks()

    # ---- starting

    def _catch_signals(self) -> tuple[int, dict[int, Any]]:
        read_fd, write_fd = os.pipe()
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        old_wakeup = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)

        def empty() -> None:
            with suppress(BlockingIOError):
                os.read(read_fd, 4096)

        self.selector.register(read_fd, selectors.EVENT_READ, empty)
        old = {}
        for number in (*_SIGNALS, *_PASSED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
                old[int(number)] = signal.signal(number, lambda n, _: self.signals.append(n))
        return old_wakeup, old

    def _start(self, folder: Path) -> None:
        processes.become_subreaper()
        environment = dict(self.launch.environment)
        logs = self.launch.run_dir / folder_module.LOGS_FOLDER
        with suppress(OSError):
            logs.mkdir(mode=0o700, exist_ok=True)
        environment[rank_start.PIPES_VARIABLE] = str(folder)
        for (rank, stream), fd in rank_start.make_pipes(folder, self.launch.placement.local_ranks).items():
            self.streams.follow(fd, rank, stream)
        inherited = {}
        for stream in ("out", "err"):
            read_fd, write_fd = os.pipe()
            os.set_blocking(read_fd, False)
            self.streams.follow(read_fd, None, stream)
            inherited[stream] = write_fd
        lock = folder_module.lock_of(self.launch.run_dir)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", str(guard_module.__file__), str(theirs.fileno())]
        self.guard = subprocess.Popen(
            command,
            env=environment,
            # The guard holds the folder's lock too: should we be killed, until all is ended and reported.
            pass_fds=(theirs.fileno(), *inherited.values(), *([] if lock is None else [lock])),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        for fd in inherited.values():
            os.close(fd)
        order = {
            "argv": self.launch.command.argv,
            "cwd": rank_start.LAUNCHER_FOLDER,  # the ranks go to the user's by themselves
            "stdout_fd": inherited["out"],
            "stderr_fd": inherited["err"],
            "run_dir": str(self.launch.run_dir),
            "expected_ranks": self.launch.placement.local_ranks,
            "spare_launcher": self.launch.placement.remote,
            "launcher_kills": self.launch.placement.slurm_job is not None,
            "temporary": [str(folder)],
            "when_parent_lost": [
                sys.executable,
                str(Path(__file__).with_name("finish.py")),
                str(self.launch.run_dir),
            ],
        }
        ours.sendall(json.dumps(order).encode() + b"\n")
        self.connection = ours
        self.selector.register(ours, selectors.EVENT_READ, self._hear_guard)
        self._next_poll = time.monotonic()

    # ---- hearing

    def _hear_guard(self) -> None:
        assert self.connection is not None
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._guard_lost()
            return
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self._on_event(event)

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "rank":
            self.progress.local_pids[event["rank"]] = event["pid"]
        elif kind == "rank_exit":
            self._on_rank_exit(event)
        elif kind == "launcher_exit":
            self._on_launcher_exit(event["code"], event["ranks_alive"])
        elif kind == "done":
            self.seen.survivors = event["survivors"]
            self.over = True
        elif kind == "error":
            self.seen.launcher_lost = f"the guard failed: {event['message']}"

    def _on_rank_exit(self, event: dict[str, Any]) -> None:
        exit_ = RankExit.of_status(event["rank"], event["code"], host=self.launch.host, at=event["at"])
        self.seen.exits.append(exit_)
        state = self.progress.ranks.get(exit_.rank)
        if state is None:  # of another run
            return
        state.exited = True
        if exit_.failed and not self.stopping:
            self.terminal.say(f"{exit_.describe()}; ending the other ranks")
            self._stop_failed()

    def _on_launcher_exit(self, code: int, ranks_alive: list[int]) -> None:
        if self.stopping:
            return
        self.seen.launcher_code = code
        if ranks_alive:
            status = launcher_status(code)
            ending = f"killed by signal {-status}" if status < 0 else f"exited with code {status}"
            self.seen.launcher_lost = (
                f"the launcher was lost ({ending}) with {counted(len(ranks_alive), 'rank')} still alive"
            )
            self.terminal.say(self.seen.launcher_lost + "; ending them")
            self._stop_failed()

    def _guard_lost(self) -> None:
        """The guard died: its children are ours now, because we are a sub-reaper too."""
        assert self.connection is not None
        self.selector.unregister(self.connection)
        if self.over:
            return
        self.stopping = True
        self.seen.stop(0.0)
        self.seen.launcher_lost = self.seen.launcher_lost or "the guard process was lost"
        self.seen.survivors = processes.kill_descendants(os.getpid())
        self.over = True

    def _heed_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            if number in _PASSED_ON:
                self.terminal.say(f"{signal.Signals(number).name}: passed on to the ranks of this machine")
                self._command(do="signal", signal=number)
                continue
            if self.seen.interrupted_by is None and not self.stopping:
                self.seen.interrupted_by = number
                self.terminal.say(
                    f"{signal.Signals(number).name}: ending the ranks, at most "
                    f"{self.launch.options.grace:g} s (once more: at once)"
                )
                self._stop(self.launch.options.grace)
            else:
                self._stop(0.0)

    # ---- judging while it runs

    def _forgive(self, rank: int, seconds: float) -> None:
        """A rank may have waited for us that long to take what it prints."""
        self.progress.forgive(rank, seconds)
        if rank in self.errors:
            self.errors[rank] += seconds

    def _living(self) -> list[int]:
        return [rank for rank, state in self.progress.ranks.items() if not state.exited]

    def _look_at_ranks(self) -> None:
        now = time.monotonic()
        for rank, record in self.progress.poll():
            if record["type"] == "error":
                self.errors.setdefault(rank, now)
            elif record["type"] == "end" and self.launch.placement.remote:
                self.progress.ranks[rank].exited = True  # no guard watches it: its own last line tells
                if record.get("state") == "failed" and not self.stopping:
                    self.terminal.say(f"rank {rank} failed; ending the other ranks")
                    self._stop_failed()
            elif record["type"] == "engine" and self.launch.expected_ranks > 1:
                for text in verdict.warnings_of(record):
                    self._warn(text)
        ran, held_to = self.progress.engine_and_steps(), self.launch.held_to
        if held_to is not None and ran["engine"] is not None and ran["steps"] >= _FEWEST_STEPS:
            for text in unlike_plan(held_to, self.launch.style, [ran] * self.launch.expected_ranks):
                self._warn(f"not as planned: {text}")  # while there is time to act
        if self.inquiry.open and self.inquiry.done(self._living()):
            cause = self.seen.cause = self.inquiry.explain()
            if cause is not None:
                self.seen.hung = f"{self.seen.hung}: {cause}"
                self.terminal.say(f"likely cause: {cause}")
            self._stop(self.launch.options.grace)
        self._wake_stopped()
        if self.stopping or self.seen.hung:
            return
        for rank, since in self.errors.items():
            if rank in self._living() and now - since > ERROR_EXIT_SECONDS and not self.stopping:
                self.terminal.say(f"rank {rank} failed but does not end; ending all ranks")
                self._stop_failed()
        self._check_time_limit()
        hung = self.progress.hung(self._living())
        if hung is not None:
            self._on_hung(hung)
        elif self.launch.options.show_progress:
            if (word := self.progress.word(self._living())) is not None:
                self.terminal.say(word)
            line = self.progress.line(self.launch.predicted_peak_bytes)
            self.terminal.status(line)
            if not self.terminal.is_terminal and self._plain_status.is_due(now, self.progress.activities):
                self.terminal.say(line)

    def _warn(self, text: str) -> None:
        """Say it once."""
        if text not in self._warned:
            self._warned.add(text)
            self.terminal.say(with_level(warning("run", text)))

    def _wake_stopped(self) -> None:
        """A guard that somebody stopped, or a launcher when its ranks have ended, would be waited for without
        end."""
        assert self.guard is not None
        guard = processes.read_process(self.guard.pid)
        others = [] if self._living() else processes.descendants(self.guard.pid)
        for process in (guard, *others):
            if process is not None and process.state == "T":
                self.terminal.say(f"process {process.pid} of this launch was stopped; it is continued")
                with suppress(OSError):
                    os.kill(process.pid, signal.SIGCONT)

    def _check_time_limit(self) -> None:
        limit = self.launch.options.limit_seconds
        if limit is None or self.stopping or time.monotonic() - self.progress.started_at < limit:
            return
        done = counted(self.progress.steps, "step")
        self.seen.timed_out = f"not done within {format_seconds(limit)}: {done} until then"
        self.terminal.say(f"{self.seen.timed_out}; ending the ranks")
        self._stop(self.launch.options.grace)

    def _on_hung(self, why: str) -> None:
        self.seen.hung = why
        self.inquiry.begin(self._living())
        stacks = self.launch.run_dir / "stacks-*.txt"
        self.terminal.say(f"hung: {why}; saving the Python stacks of every rank in {stacks}")
        self._command(do="signal", signal=int(STACKS_SIGNAL), wake=True)
        self.remote.sweep(int(STACKS_SIGNAL))

    # ---- ending

    def _stop_failed(self) -> None:
        self._stop(min(self.launch.options.grace, FAILURE_GRACE_SECONDS))

    def _stop(self, grace_seconds: float) -> None:
        self.stopping = True
        self.seen.stop(grace_seconds)
        if grace_seconds > 0:
            self.remote.sweep(int(signal.SIGTERM))
        self._command(do="stop", grace_seconds=grace_seconds)

    def _command(self, **command: Any) -> None:
        assert self.connection is not None
        with suppress(OSError):
            self.connection.sendall(json.dumps(command).encode() + b"\n")

    def _end_guard(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.guard is not None:
            with suppress(subprocess.TimeoutExpired):
                self.guard.wait(5)
            if self.guard.poll() is None or not self.over:
                self.seen.survivors = processes.kill_descendants(os.getpid())


# ---- what it saw


def begin(launch: Launch) -> Evidence:
    """What is known of a run that begins."""
    is_accepted = launch.options.accept_mismatch
    return Evidence(
        expected_ranks=launch.expected_ranks,
        host=launch.host,
        stop_ordered=launch.options.stop_after_steps is not None,
        style=None if launch.engine is None else launch.style,
        engine=launch.engine or "deepspeed",
        held_to=None if is_accepted else launch.held_to,
        why_no_training=launch.why_no_training,
        is_accepted=launch.engine is not None and is_accepted,
        oom_kills=-oom_kills(),  # those before are none of the run's
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is over: the verdict, and what it rests on; the end of what was printed by the rank that
    explains the failure (empty where the terminal has it already); and bytes of output that could not be
    written. ``elapsed_seconds``: by a clock that nobody sets, where this machine's was set meanwhile."""

    evidence: Evidence
    verdict: Verdict
    failure_tail: str
    dropped_bytes: int
    elapsed_seconds: float | None = None


def conclude(
    launch: Launch, seen: Evidence, progress: Progress, tails: Mapping[str, str], dropped_bytes: int
) -> Ended:
    """Judge a run that is over. ``tails``: the last output by log name."""
    tails_of_ranks = {rank: state.tail for rank, state in progress.ranks.items()}
    accounts = {rank: tail.last_account() for rank, tail in tails_of_ranks.items() if tail.records}
    seen.read_files(launch.run_dir, accounts)
    seen.oom_kills += oom_kills()
    verdict = judge(seen)
    if seen.cause is None:
        with suppress(Exception):  # a guess at the cause never costs the report of a run that is over
            seen.cause = explain_failure(launch.run_dir, verdict, seen)
        if seen.cause is not None:
            verdict = replace(verdict, why=f"{verdict.why}; likely cause: {seen.cause}")
    elapsed = time.monotonic() - progress.started_at
    clock_change = abs(time.time() - progress.started_clock - elapsed)
    return Ended(
        evidence=seen,
        verdict=verdict,
        failure_tail=_failure_tail(verdict, tails, launch.options.show),
        dropped_bytes=dropped_bytes,
        elapsed_seconds=elapsed if clock_change > _CLOCK_SLACK_SECONDS else None,
    )


def _failure_tail(verdict: Verdict, tails: Mapping[str, str], show_ranks: str) -> str:
    """The end of what explains the failure: the failed rank's errors, or the launcher's.

    ``show_ranks``: whose output went on to the terminal (``first``, ``all``, ``none``). What stands there, or
    ends with the same words as what stands there, is not said again.
    """
    told = (Outcome.INTERRUPTED, Outcome.NOT_AS_PLANNED, Outcome.TRAINED_OTHERWISE)
    if verdict.exit_code == 0 or verdict.outcome in told:
        return ""

    def errors_of(rank: int) -> str:
        return tails.get(f"rank-{rank:05d}.err", "")

    failed = [end.rank for end in verdict.ends if end.state is RankState.FAILED]
    first = [verdict.first_failure.rank] if verdict.first_failure is not None else []
    for rank in [*first, *failed]:
        tail = errors_of(rank)
        if tail.strip():
            is_alike = _last_line(tail) == _last_line(errors_of(0))
            return "" if show_ranks == "all" or (show_ranks == "first" and is_alike) else tail
    return tails.get("launcher.err") or tails.get("launcher.out") or ""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _LINE_PREFIX.sub("", lines[-1]) if lines else ""
