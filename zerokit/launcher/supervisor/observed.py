"""What the supervisor sees of a run, as evidence for the verdict on it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from zerokit.launcher.launch import Launch
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict.evidence import Evidence, oom_kills
from zerokit.launcher.verdict.verdict import Verdict, judge
from zerokit.launcher.verdict.why_broken import explain_failure
from zerokit.report.schema import Outcome, RankState

_CLOCK_SLACK_SECONDS = 1.0  # what keeping a clock right moves it by

_LINE_PREFIX = re.compile(r"^\[rank\d+\]:\s*")  # torch's own, of an uncaught exception


def begin(launch: Launch) -> Evidence:
    """What is known of a run that begins."""
    is_accepted = launch.options.accept_mismatch
    return Evidence(
        expected_ranks=launch.expected_ranks,
        host=launch.host,
        stop_ordered=launch.options.stop_after_steps is not None,
        style=None if launch.config is None else launch.style,
        held_to=None if is_accepted else launch.held_to,
        why_no_training=launch.why_no_training,
        is_accepted=launch.config is not None and is_accepted,
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
