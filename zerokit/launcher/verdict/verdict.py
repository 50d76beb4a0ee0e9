"""How a run ended: one decision, made from what was seen, with its exit code."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zerokit.errors import LauncherLost, RankFailed, RunHung


class Outcome(str, Enum):
    """``report.json``'s ``outcome``."""

    OK = "ok"
    RANK_FAILED = "rank_failed"
    OOM = "oom"
    HUNG = "hung"
    LAUNCHER_LOST = "launcher_lost"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"  # after the number of steps that was ordered: no failure, and no finished training
    TIMED_OUT = "timed_out"  # ended at the time limit that was ordered

    def __str__(self) -> str:
        return self.value


class RankExit(NamedTuple):
    """How one rank's process ended, as the guard saw it.

    ``code`` and ``signal`` are both None when the status could not be read. ``at`` is wall
    time in seconds. ``by_us``: zerokit had already begun to end the run. ``out_of_memory_killer``: the
    kernel killed it because the host's memory ran out.
    """

    rank: int
    host: str
    code: int | None
    signal: int | None
    at: float
    by_us: bool = False
    out_of_memory_killer: bool = False

    @property
    def failed(self) -> bool:
        """Ended by itself with anything but success."""
        return not self.by_us and (self.signal is not None or (self.code is not None and self.code != 0))

    def describe(self) -> str:
        """``rank 3 on node-1 was killed by SIGKILL``."""
        who = f"rank {self.rank} on {self.host}"
        if self.signal is not None:
            return f"{who} was killed by {signal_name(self.signal)}"
        return (
            f"{who} exited with code {self.code}" if self.code is not None else f"{who} ended, code unknown"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome, the exit code of the command, and why, in one sentence."""

    outcome: Outcome
    exit_code: int
    why: str
    reports_missing: bool = False  # the only fault: ranks that ended well left no report


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that the supervisor saw.

    Attributes:
        rank_exits: in the order seen.
        launcher_code: negative for a signal; None when it was not seen to end.
        launcher_lost: it ended, or the guard did, while ranks were alive.
        interrupted_by: the signal that zerokit got.
        hung: which ranks stalled, and since when, in words.
        out_of_memory: rank -> what is known, for ranks that recorded or suffered one.
        reporting: ranks that left a report.
        stopped: ranks whose last line says that they stopped at the step limit.
        stop_ordered: whether the run was given a step limit at all.
        timed_out: the time limit it was ended at, in words.
    """

    expected_ranks: int
    rank_exits: Sequence[RankExit]
    launcher_code: int | None
    launcher_lost: str | None
    interrupted_by: int | None
    hung: str | None
    out_of_memory: Mapping[int, str]
    reporting: frozenset[int]
    stopped: frozenset[int] = frozenset()
    stop_ordered: bool = False
    timed_out: str | None = None


def signal_name(number: int) -> str:
    """``SIGKILL``; ``signal 70`` for those without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def launcher_status(code: int) -> int:
    """A launcher's exit code as a process's: ``deepspeed`` turns −9 into 247 (256 − 9)."""
    return code - 256 if 128 < code - 64 <= 191 else code


def decide(seen: Evidence) -> Verdict:
    """Judge a run. What came first wins: a user's signal, a hang, a failing rank, a lost launcher.

    Nothing is a success but every rank exiting with zero *and* leaving a report.
    """
    if seen.interrupted_by is not None:
        number = seen.interrupted_by
        return _verdict(Outcome.INTERRUPTED, 128 + number, f"interrupted by {signal_name(number)}")
    if seen.hung is not None:
        return _verdict(Outcome.HUNG, RunHung.exit_code, seen.hung)
    if seen.timed_out is not None:
        return _verdict(Outcome.TIMED_OUT, RunHung.exit_code, seen.timed_out)
    failed = [exit_ for exit_ in seen.rank_exits if exit_.failed]
    if seen.out_of_memory and (failed or seen.launcher_code):
        rank, what = next(iter(seen.out_of_memory.items()))
        return _verdict(Outcome.OOM, RankFailed.exit_code, f"rank {rank} ran out of memory: {what}")
    if failed:
        return _verdict(Outcome.RANK_FAILED, RankFailed.exit_code, first_failure(failed).describe())
    if seen.launcher_lost is not None:
        return _verdict(Outcome.LAUNCHER_LOST, LauncherLost.exit_code, seen.launcher_lost)
    return _judge_end(seen)


def _judge_end(seen: Evidence) -> Verdict:
    missing = sorted(set(range(seen.expected_ranks)) - seen.reporting)
    if seen.launcher_code:
        status = launcher_status(seen.launcher_code)
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with code {status}"
        what = (
            "before any rank started"
            if not seen.rank_exits and not seen.reporting
            else "though no rank failed"
        )
        return _verdict(Outcome.LAUNCHER_LOST, LauncherLost.exit_code, f"the launcher {how} {what}")
    if missing:
        names = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        return Verdict(
            outcome=Outcome.LAUNCHER_LOST,
            exit_code=LauncherLost.exit_code,
            why=f"{len(missing)} of {seen.expected_ranks} ranks left no report (rank {names}): not a success",
            reports_missing=True,
        )
    if seen.stopped:
        return _judge_stopped(seen)
    return _verdict(Outcome.OK, 0, f"all {seen.expected_ranks} ranks finished")


def _judge_stopped(seen: Evidence) -> Verdict:
    """A step limit ends all ranks at the same step, or the run was not what it seems."""
    others = sorted(set(range(seen.expected_ranks)) - seen.stopped)
    if seen.stop_ordered and not others:
        return _verdict(Outcome.STOPPED, 0, f"all {seen.expected_ranks} ranks stopped at the step limit")
    what = (
        "that nobody ordered" if not seen.stop_ordered else f"but rank {others[0]} ended without reaching it"
    )
    return _verdict(
        Outcome.LAUNCHER_LOST,
        LauncherLost.exit_code,
        f"rank {min(seen.stopped)} stopped at a step limit, {what}",
    )


def _verdict(outcome: Outcome, exit_code: int, why: str) -> Verdict:
    return Verdict(outcome=outcome, exit_code=exit_code, why=why)


def first_failure(failed: Sequence[RankExit]) -> RankExit:
    """The failure that explains the others.

    Peers of a killed rank fail within moments with a broken connection, and may be seen in
    the same instant: among ends less than 0.3 s apart a fatal signal goes first.
    """
    first = min(failed, key=lambda exit_: exit_.at)
    close = [exit_ for exit_ in failed if exit_.at - first.at < 0.3]
    killed = [
        e for e in close if e.signal in (signals.SIGKILL, signals.SIGSEGV, signals.SIGBUS, signals.SIGILL)
    ]
    return min(killed or close, key=lambda exit_: exit_.at)
