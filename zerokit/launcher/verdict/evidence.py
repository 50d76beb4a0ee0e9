"""What is to be run, what was seen of it, and the judgement at its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict.verdict import Evidence, RankExit, Verdict, decide, launcher_status

_CLOCK_SLACK_SECONDS = 1.0  # what keeping a clock right moves it by


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is to be run, and how patiently.

    Attributes:
        environment: of the launcher, complete.
        script_arguments: as the user gave them; secrets among them are kept out of what is written.
        local_ranks: how many of the ranks run on this machine.
        remote: ranks on other machines too, which the guard cannot see.
        remote_hosts: their names; zerokit reaches them over ssh, or in a step of ``slurm_job``.
        slurm_job: the id of the job whose nodes they are.
        unshared_hosts: those of them that have a run folder of their own.
        alive_seconds: without a sign of life from here for so long, ranks on other hosts end themselves.
        heartbeat_seconds: without progress for so long, the run counts as hung; 0: never.
        show_ranks: whose output goes on to the terminal: ``first``, ``all`` or ``none``.
        stop_after_steps: every rank stops after so many optimizer steps; None: the script decides.
        limit_seconds: the run is ended after so long; None: never.
        plan: ``request`` and ``chosen`` of the plan that the run is held to; None: to none.
        style: how the script takes its configuration.
    """

    argv: list[str]
    environment: Mapping[str, str]
    cwd: Path
    run_dir: Path
    expected_ranks: int
    local_ranks: int
    host: str
    script_arguments: tuple[str, ...] = ()
    grace_seconds: float = 10.0
    heartbeat_seconds: float = 60.0
    remote: bool = False
    remote_hosts: tuple[str, ...] = ()
    slurm_job: str | None = None
    unshared_hosts: tuple[str, ...] = ()
    alive_seconds: float = 120.0
    show_ranks: str = "first"
    predicted_peak_bytes: int | None = None
    stop_after_steps: int | None = None
    limit_seconds: float | None = None
    plan: Mapping[str, Any] | None = None
    style: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is over: the verdict and what it rests on.

    ``accounts``: rank -> the newest records of its file, which may be gone by now. ``elapsed_seconds``: where
    this machine's clock was set meanwhile, by one that nobody sets.
    """

    verdict: Verdict
    rank_exits: list[RankExit]
    survivors: list[int]
    failure_tail: str
    dropped_bytes: int
    accounts: Mapping[int, list[dict[str, Any]]] = field(default_factory=dict)
    elapsed_seconds: float | None = None


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the supervisor has seen so far; ``errors``: rank -> when its uncaught exception was read."""

    oom_kills_before: int
    exits: list[RankExit] = field(default_factory=list)
    rank_pids: dict[int, int] = field(default_factory=dict)
    launcher_code: int | None = None
    launcher_ended: bool = False
    launcher_lost: str | None = None
    interrupted_by: int | None = None
    hung: str | None = None
    timed_out: str | None = None
    errors: dict[int, float] = field(default_factory=dict)  # monotonic seconds
    survivors: list[int] = field(default_factory=list)
    stopped_at: float | None = None  # wall time


def judge(
    launch: Launch, seen: Seen, progress: Progress, tails: Mapping[str, str], dropped_bytes: int
) -> Ended:
    """The verdict on a run that is over. ``tails``: the last output by log name."""
    seen.exits += _unseen_exits(launch, seen, progress)
    _blame_silent(launch, seen, progress)
    evidence = Evidence(
        expected_ranks=launch.expected_ranks,
        rank_exits=seen.exits,
        launcher_code=seen.launcher_code,
        launcher_lost=seen.launcher_lost,
        interrupted_by=seen.interrupted_by,
        hung=seen.hung,
        out_of_memory=_out_of_memory(seen, progress),
        reporting=progress.reporting(),
        stopped=frozenset(r for r, end in progress.records("end").items() if end.get("state") == "stopped"),
        stop_ordered=launch.stop_after_steps is not None,
        timed_out=seen.timed_out,
    )
    verdict = decide(evidence)
    return Ended(
        verdict=verdict,
        rank_exits=seen.exits,
        survivors=seen.survivors,
        failure_tail=_failure_tail(seen, verdict, tails),
        dropped_bytes=dropped_bytes,
        accounts=progress.last_accounts(),
        elapsed_seconds=_elapsed_if_clock_was_set(progress),
    )


def _elapsed_if_clock_was_set(progress: Progress) -> float | None:
    elapsed = time.monotonic() - progress.started_at
    moved = abs(time.time() - progress.started_clock - elapsed)
    return elapsed if moved > _CLOCK_SLACK_SECONDS else None


def _unseen_exits(launch: Launch, seen: Seen, progress: Progress) -> list[RankExit]:
    """Exits that the guard did not see, from the ranks' own last lines and the launcher's code.

    A rank may live for less than the guard's look at the process table, or on another machine. A launcher
    that ends with 0 says so of each of its ranks.
    """
    known = {exit_.rank for exit_ in seen.exits}
    starts, ends, errors = (progress.records(kind) for kind in ("start", "end", "error"))
    found = []
    for rank, record in sorted({**errors, **ends}.items()):
        if rank in known:
            continue
        at = float(record.get("time") or 0.0)
        code = record.get("exit_code", 1)
        number = record.get("signal")
        ours = record.get("state") == "terminated" or (seen.stopped_at is not None and at > seen.stopped_at)
        host = str(starts.get(rank, {}).get("host") or launch.host)
        found.append(RankExit(rank=rank, host=host, code=code, signal=number, at=at, by_us=ours))
        known.add(rank)
    if seen.launcher_code == 0 and not seen.launcher_lost:
        for rank in sorted(set(starts) - known):
            host = str(starts[rank].get("host") or launch.host)
            found.append(RankExit(rank=rank, host=host, code=0, signal=None, at=time.time()))
    return found


def _blame_silent(launch: Launch, seen: Seen, progress: Progress) -> None:
    """With a failing launcher and no failed rank, the rank that ended without a last line failed.

    Its status may have been reaped before the guard could read it, or the kernel may not show it
    (gVisor). DeepSpeed ends with the code of the rank that failed first.
    """
    if not seen.launcher_code or seen.launcher_lost or any(exit_.failed for exit_ in seen.exits):
        return
    starts, ends = progress.records("start"), progress.records("end")
    known = {exit_.rank for exit_ in seen.exits}
    for rank in sorted(set(starts) - known):
        host = str(starts[rank].get("host") or launch.host)
        seen.exits.append(RankExit(rank=rank, host=host, code=None, signal=None, at=time.time()))
    silent = [
        exit_ for exit_ in seen.exits if exit_.rank not in ends and exit_.signal is None and not exit_.by_us
    ]
    if silent:
        first = min(silent, key=lambda exit_: exit_.at)
        status = launcher_status(seen.launcher_code)
        code, number = (None, -status) if status < 0 else (status, None)
        seen.exits[seen.exits.index(first)] = first._replace(code=code, signal=number)


def _out_of_memory(seen: Seen, progress: Progress) -> dict[int, str]:
    """Rank -> what failed, for failed ranks whose own record or whose kernel says so; first first."""
    failed = {exit_.rank for exit_ in seen.exits if exit_.failed} | set(seen.errors)
    errors = {r: e for r, e in progress.records("error").items() if e.get("out_of_memory")}
    both = {**progress.records("oom"), **errors}
    records = sorted(both.items(), key=lambda item: float(item[1].get("time") or 0))
    found = {
        rank: str(record.get("message") or record.get("error") or "an allocation failed")
        for rank, record in records
        if rank in failed
    }
    killed = [exit_ for exit_ in seen.exits if exit_.failed and exit_.signal == signal.SIGKILL]
    if killed and oom_kills() > seen.oom_kills_before:
        first = killed[0]
        found.setdefault(first.rank, "host memory; the kernel's OOM-killer ended it")
        seen.exits[seen.exits.index(first)] = first._replace(out_of_memory_killer=True)
    return found


def _failure_tail(seen: Seen, verdict: Verdict, tails: Mapping[str, str]) -> str:
    """The end of what explains the failure: the failed rank's errors, or the launcher's."""
    if verdict.exit_code == 0 or seen.interrupted_by is not None:
        return ""
    failed = [exit_.rank for exit_ in seen.exits if exit_.failed]
    for rank in [*seen.errors, *failed]:
        tail = tails.get(f"rank-{rank:05d}.err", "")
        if tail.strip():
            return tail
    return tails.get("launcher.err") or tails.get("launcher.out") or ""


def oom_kills() -> int:
    """How often the kernel's OOM-killer struck in this control group; 0 where nobody counts.

    cgroup v2: ``oom_kill`` of memory.events; v1: of memory.oom_control (kernel 4.13 and later).
    """
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
                    return _oom_kill_in(path.read_text())
    return 0


def _oom_kill_in(text: str) -> int:
    fields = dict(line.split() for line in text.splitlines())
    return int(fields.get("oom_kill", 0))
