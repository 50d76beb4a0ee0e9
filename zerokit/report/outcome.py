"""How a run ended, and how each of its ranks did: the words of ``report.json``, each with what it means."""

from __future__ import annotations

from enum import Enum

from zerokit.errors import ExitCode


class Outcome(str, Enum):
    """``report.json``'s ``outcome``. Each row: its name, what it means for people, and the exit code of the
    command (an interrupted run ends with 128 and the signal's number instead)."""

    text: str
    exit_code: int

    OK = "ok", "every rank finished"
    NOT_AS_PLANNED = (
        "not_as_planned", "the script ended well, but did not do what the plan says", ExitCode.NOT_AS_PLANNED,
    )  # fmt: skip
    TRAINED_OTHERWISE = (
        "trained_otherwise", "the script ended well, but trained nothing, or otherwise than its code says",
        ExitCode.NOT_AS_PLANNED,
    )  # fmt: skip
    RANK_FAILED = "rank_failed", "a rank failed", ExitCode.RANK_FAILED
    OOM = "oom", "out of memory", ExitCode.RANK_FAILED
    HUNG = "hung", "no progress within the heartbeat", ExitCode.HUNG
    LAUNCHER_LOST = (
        "launcher_lost", "the launcher was lost, or a rank left no complete report", ExitCode.LAUNCHER_LOST,
    )  # fmt: skip
    INTERRUPTED = "interrupted", "interrupted"
    # after the number of steps that was ordered: no failure, and no finished training
    STOPPED = "stopped", "stopped at its step limit"
    TIMED_OUT = "timed_out", "ended at its time limit", ExitCode.HUNG
    RUNNING = "running", "still running"  # never written to a file

    def __new__(cls, name: str, text: str = "", exit_code: int = ExitCode.DONE) -> Outcome:
        member = str.__new__(cls, name)
        member._value_, member.text, member.exit_code = name, text, exit_code
        return member

    def __str__(self) -> str:
        return str(self.value)

    @property
    def words(self) -> str:
        """Its name, for people: ``not as planned``."""
        return str(self).replace("_", " ")

    @property
    def is_whole(self) -> bool:
        """Whether the script ended as it meant to, or where it was told to stop."""
        return self in (
            Outcome.OK, Outcome.NOT_AS_PLANNED, Outcome.TRAINED_OTHERWISE, Outcome.STOPPED, Outcome.RUNNING,
        )  # fmt: skip

    def because(self, why: str | None) -> str:
        """Its name and the reason, in one sentence that says nothing twice: ``rank failed: rank 1 …``."""
        if not why:
            return self.words
        return why if why.startswith(self.words) else f"{self.words}: {why}"


class RankState(str, Enum):
    """``report.json``'s ``state`` of a rank."""

    FINISHED = "finished"
    STOPPED = "stopped"  # at the step limit
    FAILED = "failed"
    TERMINATED = "terminated"  # by zerokit, or by a peer's failure
    LOST = "lost"  # nothing says how it ended
    RUNNING = "running"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_good(self) -> bool:
        """Whether the rank did all that it was to do."""
        return self in (RankState.FINISHED, RankState.STOPPED)
