"""How a run ended, and how each of its ranks did: the words of ``report.json``, each with what it means."""

from __future__ import annotations

from enum import Enum

from zerokit.errors import LauncherLost, NotAsPlanned, RankFailed, RunHung


class Outcome(str, Enum):
    """``report.json``'s ``outcome``."""

    OK = "ok"
    NOT_AS_PLANNED = "not_as_planned"
    TRAINED_OTHERWISE = "trained_otherwise"
    RANK_FAILED = "rank_failed"
    OOM = "oom"
    HUNG = "hung"
    LAUNCHER_LOST = "launcher_lost"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"  # after the number of steps that was ordered: no failure, and no finished training
    TIMED_OUT = "timed_out"
    RUNNING = "running"  # never written to a file

    def __str__(self) -> str:
        return self.value

    @property
    def text(self) -> str:
        """What it means, for people."""
        return _TEXTS[self]

    @property
    def words(self) -> str:
        """Its name, for people: ``not as planned``."""
        return self.value.replace("_", " ")

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

    @property
    def exit_code(self) -> int:
        """Of the command; an interrupted run ends with 128 and the signal's number instead."""
        return _EXIT_CODES.get(self, 0)


class RankState(str, Enum):
    """``report.json``'s ``state`` of a rank."""

    FINISHED = "finished"
    STOPPED = "stopped"  # at the step limit
    FAILED = "failed"
    TERMINATED = "terminated"  # by zerokit, or by a peer's failure
    LOST = "lost"  # nothing says how it ended
    RUNNING = "running"

    def __str__(self) -> str:
        return self.value

    @property
    def is_good(self) -> bool:
        """Whether the rank did all that it was to do."""
        return self in (RankState.FINISHED, RankState.STOPPED)


_TEXTS = {
    Outcome.OK: "every rank finished",
    Outcome.NOT_AS_PLANNED: "the script ended well, but did not do what the plan says",
    Outcome.TRAINED_OTHERWISE: "the script ended well, but trained nothing, or otherwise than its code says",
    Outcome.RANK_FAILED: "a rank failed",
    Outcome.OOM: "out of memory",
    Outcome.HUNG: "no progress within the heartbeat",
    Outcome.LAUNCHER_LOST: "the launcher was lost, or a rank left no complete report",
    Outcome.INTERRUPTED: "interrupted",
    Outcome.STOPPED: "stopped at its step limit",
    Outcome.TIMED_OUT: "ended at its time limit",
    Outcome.RUNNING: "still running",
}
_EXIT_CODES = {
    Outcome.NOT_AS_PLANNED: NotAsPlanned.exit_code,
    Outcome.TRAINED_OTHERWISE: NotAsPlanned.exit_code,
    Outcome.RANK_FAILED: RankFailed.exit_code,
    Outcome.OOM: RankFailed.exit_code,
    Outcome.HUNG: RunHung.exit_code,
    Outcome.TIMED_OUT: RunHung.exit_code,
    Outcome.LAUNCHER_LOST: LauncherLost.exit_code,
}
