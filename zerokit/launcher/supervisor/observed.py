"""What the supervisor sees of a run, as evidence for the verdict on it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from zerokit.launcher.launch import Launch
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict.evidence import RankFiles, oom_kills, read_rank_files
from zerokit.launcher.verdict.rank_end import RankExit
from zerokit.launcher.verdict.rank_view import Cause
from zerokit.launcher.verdict.verdict import Evidence, Verdict, judge
from zerokit.launcher.verdict.why_broken import explain_failure
from zerokit.report.schema import Outcome, RankState

_CLOCK_SLACK_SECONDS = 1.0  # what keeping a clock right moves it by

_LINE_PREFIX = re.compile(r"^\[rank\d+\]:\s*")  # torch's own, of an uncaught exception


@dataclass(slots=True, kw_only=True)
class Observed:
    """What was seen so far. ``errors``: rank -> when its uncaught exception was read, in monotonic seconds;
    when the ranks were told to end, and killed: in Unix seconds."""

    oom_kills_before: int = field(default_factory=oom_kills)
    exits: list[RankExit] = field(default_factory=list)
    rank_pids: dict[int, int] = field(default_factory=dict)
    launcher_code: int | None = None
    launcher_lost: str | None = None
    interrupted_by: int | None = None
    hung: str | None = None
    cause: Cause | None = None
    timed_out: str | None = None
    errors: dict[int, float] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    stopped_at: float | None = None
    killed_at: float | None = None

    def stop(self, grace_seconds: float) -> None:
        """Note that the ranks are told to end now, and killed after the grace."""
        now = time.time()
        self.stopped_at = self.stopped_at or now
        self.killed_at = min(self.killed_at or now + grace_seconds, now + grace_seconds)

    def evidence(self, launch: Launch, files: RankFiles) -> Evidence:
        """All that is known of the run now that it is over."""
        return Evidence(
            expected_ranks=launch.expected_ranks,
            logs=files.logs,
            exits=self.exits,
            host=launch.host,
            launcher_code=self.launcher_code,
            launcher_lost=self.launcher_lost,
            interrupted_by=self.interrupted_by,
            hung=self.hung,
            timed_out=self.timed_out,
            stopped_at=self.stopped_at,
            killed_at=self.killed_at,
            oom_kills=oom_kills() - self.oom_kills_before,
            stop_ordered=launch.options.stop_after_steps is not None,
            plan_check=launch.plan_check,
            last_words=files.last_words,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is over: the verdict, what it rests on, and why it hung, where the ranks' records tell;
    processes that could not be killed; the end of what was printed by the rank that explains the failure
    (empty where the terminal has it already); and bytes of output that could not be written.
    ``elapsed_seconds``: by a clock that nobody sets, where this machine's was set meanwhile."""

    evidence: Evidence
    files: RankFiles
    verdict: Verdict
    survivors: list[int]
    failure_tail: str
    dropped_bytes: int
    elapsed_seconds: float | None = None
    cause: Cause | None = None


def conclude(
    launch: Launch, observed: Observed, progress: Progress, tails: Mapping[str, str], dropped_bytes: int
) -> Ended:
    """Judge a run that is over. ``tails``: the last output by log name."""
    files = read_rank_files(launch.run_dir, progress.last_accounts())
    evidence = observed.evidence(launch, files)
    verdict = judge(evidence)
    cause = observed.cause
    if cause is None:
        with suppress(Exception):  # a guess at the cause never costs the report of a run that is over
            cause = explain_failure(launch.run_dir, verdict, files)
        if cause is not None:
            verdict = replace(verdict, why=f"{verdict.why}; likely cause: {cause}")
    elapsed = time.monotonic() - progress.started_at
    clock_change = abs(time.time() - progress.started_clock - elapsed)
    return Ended(
        evidence=evidence,
        files=files,
        verdict=verdict,
        survivors=observed.survivors,
        failure_tail=_failure_tail(verdict, tails, launch.options.show),
        dropped_bytes=dropped_bytes,
        elapsed_seconds=elapsed if clock_change > _CLOCK_SLACK_SECONDS else None,
        cause=cause,
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
