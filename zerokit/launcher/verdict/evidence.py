"""What a run is judged by: what is seen of it, the ranks' files and last words, the kernel's OOM-killer."""

from __future__ import annotations

import os
import signal as signals
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.files import open_regular
from zerokit.launcher.rank_file import RankLog, Record, find_rank_files, rank_file, read_rank_file
from zerokit.launcher.run_folder import LOGS_FOLDER
from zerokit.report.schema import Hang, signal_name
from zerokit.report.what_ran import no_engine, unlike_plan

_MOST_BAD_LINES = 100
_LAST_WORDS_BYTES = 4096
SOON_SECONDS = 0.3  # ends closer together than this may have been seen in any order
CRASH_SIGNALS = frozenset(
    int(number)
    for number in (signals.SIGKILL, signals.SIGSEGV, signals.SIGBUS, signals.SIGILL, signals.SIGFPE,
                   signals.SIGSYS, signals.SIGTRAP)
)  # fmt: skip
"""Signals that end a process and are never what a peer's failure does to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How a rank's process ended, as it was seen from outside, at which Unix second. ``code`` and ``signal``
    are both None where the status could not be read."""

    rank: int
    host: str | None = None
    code: int | None = None
    signal: int | None = None
    at: float | None = None

    @classmethod
    def of_status(cls, rank: int, status: int | None, *, host: str, at: float) -> RankExit:
        """From a status as Python gives it: negative for a signal, None where it could not be read."""
        if status is None or status >= 0:
            return cls(rank=rank, host=host, code=status, at=at)
        return cls(rank=rank, host=host, signal=-status, at=at)

    @property
    def failed(self) -> bool:
        """Whether it was anything but a success."""
        return self.signal is not None or bool(self.code)

    def describe(self) -> str:
        """``rank 3 on node-1 was killed by SIGKILL``."""
        name = f"rank {self.rank} on {self.host or 'unknown'}"
        if self.signal is not None:
            return f"{name} was killed by {signal_name(self.signal)}"
        return (
            f"{name} exited with code {self.code}" if self.code is not None else f"{name} ended, code unknown"
        )


@dataclass(slots=True, kw_only=True)
class Evidence:
    """All that is known of a run: what is seen while it lives, and what its ranks left in its folder. Times:
    Unix seconds.

    Attributes:
        logs: what each rank wrote of itself; a rank that wrote nothing is not among them.
        problems: a sentence for each file and line of the ranks that could not be used.
        last_words: rank -> the end of its standard error.
        exits: of the ranks' processes, in the order seen, by ``host``.
        launcher_code: negative for a signal; None when it was not seen to end.
        launcher_lost: it ended, or the guard or zerokit did, while ranks were alive; in words, as are which
            ranks ``hung``, and the time limit that the run was ended at.
        interrupted_by: the signal that zerokit got.
        stopped_at, killed_at: when zerokit began to end the ranks, and to kill them.
        oom_kills: how many processes the kernel's OOM-killer ended during the run.
        stop_ordered: whether the run was given a step limit; None where nobody knows.
        style: how the script takes the configuration that it was given; None where it was given none.
        engine: what that is for, ``deepspeed`` or ``fsdp2``.
        held_to: a plan's ``request`` and ``chosen``; None where there is no plan, or another run than the
            plan's ``is_accepted``.
        why_no_training: what the script's arguments lack to train, if that is known.
        cause: why it hung, or broke.
        survivors: processes that could not be killed.
    """

    expected_ranks: int
    logs: Mapping[int, RankLog] = field(default_factory=dict)
    problems: Sequence[str] = ()
    last_words: Mapping[int, str] = field(default_factory=dict)
    exits: list[RankExit] = field(default_factory=list)
    host: str = "unknown"
    launcher_code: int | None = None
    launcher_lost: str | None = None
    interrupted_by: int | None = None
    hung: str | None = None
    timed_out: str | None = None
    stopped_at: float | None = None
    killed_at: float | None = None
    oom_kills: int = 0
    stop_ordered: bool | None = None
    style: str | None = None
    engine: str = "deepspeed"
    held_to: Mapping[str, Any] | None = None
    why_no_training: str | None = None
    is_accepted: bool = False
    cause: Hang | None = None
    survivors: Sequence[int] = ()

    @property
    def ended_on_purpose(self) -> bool:
        """Whether zerokit ended the run for another reason than a failure."""
        return self.interrupted_by is not None or self.hung is not None or self.timed_out is not None

    def ended(self, exit_: RankExit, *, was_terminated: bool) -> bool:
        """Whether zerokit ended this process.

        A crash within a moment of the first failure is the rank's own, unless ``was_terminated``: its own
        file says that it took the SIGTERM. zerokit sends SIGTERM and, later, SIGKILL, and nothing else.
        """
        if self.stopped_at is None or exit_.at is None or exit_.at <= self.stopped_at:
            return False
        if was_terminated or self.ended_on_purpose or exit_.at > self.stopped_at + SOON_SECONDS:
            return True
        if exit_.signal == signals.SIGKILL:
            return self.killed_at is None or exit_.at >= self.killed_at
        return exit_.signal != signals.SIGABRT and exit_.signal not in CRASH_SIGNALS

    def differences(self) -> tuple[str, ...]:
        """Where a run that ended well did something else than it was configured for, one sentence each."""
        if self.style is None:
            return ()
        ranks = [_engine_facts(log) for _, log in sorted(self.logs.items())]
        missing = no_engine(ranks, self.engine)
        if missing is not None and self.why_no_training is not None:
            return (f"no training step was seen: {self.why_no_training}",)
        if missing is not None:
            return (missing,)
        return () if self.held_to is None else tuple(unlike_plan(self.held_to, self.style, ranks))

    def stop(self, grace_seconds: float) -> None:
        """Note that the ranks are told to end now, and killed after the grace."""
        now = time.time()
        self.stopped_at = self.stopped_at or now
        self.killed_at = min(self.killed_at or now + grace_seconds, now + grace_seconds)

    def read_files(self, run_dir: Path, accounts: Mapping[int, list[Record]] | None = None) -> None:
        """Read every rank's file; ``accounts``, what was read of it while the rank ran, where it is gone."""
        logs: dict[int, RankLog] = {}
        problems: list[str] = []
        bad: list[str] = []
        for path in find_rank_files(run_dir):
            try:
                log = read_rank_file(path)
            except OSError as error:
                problems.append(f"{path.name} cannot be read: {error.strerror}")
                continue
            bad += [str(line) for line in log.bad_lines]
            if log.interleaved():
                pids = ", ".join(str(pid) for pid in dict.fromkeys(log.writers()))
                problems.append(f"{path.name}: two processes (pids {pids}) wrote as rank {log.rank}")
            if log.records:
                logs[log.rank] = log
        problems += bad[:_MOST_BAD_LINES]
        if len(bad) > _MOST_BAD_LINES:
            problems.append(f"{len(bad) - _MOST_BAD_LINES} more bad lines")
        for rank, records in sorted((accounts or {}).items()):
            if rank not in logs:
                path = rank_file(run_dir, rank)
                logs[rank] = RankLog(rank=rank, path=path, records=records)
                problems.append(
                    f"{path.name} is gone: removed during the run; what was read of it before is used"
                )
        self.logs, self.problems, self.last_words = logs, problems, _last_words(run_dir, logs)


def _engine_facts(log: RankLog) -> dict[str, Any]:
    record = log.last("end", "tick") or {}
    return {
        "engine": log.last("engine"),
        "steps": record.get("steps") or 0,
        "steps_counted_by": record.get("steps_counted_by"),
        "micro_steps": record.get("micro_steps") or 0,
        "most_micro_steps": record.get("most_micro_steps") or 0,
        "phase_details": record.get("phases") or {},
    }


def _last_words(run_dir: Path, ranks: Iterable[int]) -> dict[int, str]:
    last_words = {}
    for rank in ranks:
        path = run_dir / LOGS_FOLDER / f"rank-{rank:05d}.err.log"
        with suppress(OSError), open_regular(path, run_dir) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_WORDS_BYTES))
            last_words[rank] = file.read(_LAST_WORDS_BYTES).decode("utf-8", "replace")
    return last_words


def oom_kills() -> int:
    """How often the kernel's OOM-killer struck in this control group; 0 where nobody counts. cgroup v2:
    ``oom_kill`` of memory.events; v1: of memory.oom_control (kernel 4.13 and later)."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            if number == "0" and not controllers:
                counts = [Path(f"/sys/fs/cgroup{group}/memory.events")]
            elif "memory" in controllers.split(","):
                base = Path("/sys/fs/cgroup/memory")
                counts = [base / group.lstrip("/") / "memory.oom_control", base / "memory.oom_control"]
            else:
                continue
            for path in counts:
                with suppress(OSError):
                    fields = dict(line.split() for line in path.read_text().splitlines())
                    return int(fields.get("oom_kill", 0))
    return 0
