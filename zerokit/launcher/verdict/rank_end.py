"""How each rank ended, and which rank failed first: from its file and from its process's exit alike.

The first failure is the one that explains the others. It is chosen so:

1. A rank that zerokit ended, or whose error is what a peer's failure looks like from here (a broken
   connection, NCCL's watchdog), explains nothing while another rank failed by itself.
2. The earliest failure goes first: the moment at which the rank itself recorded its exception or its end,
   otherwise the moment at which the process was seen to end.
3. Failures less than 0.3 s apart may have been seen in any order. Among them the one that tells most goes
   first: an out-of-memory; a signal that no peer's failure causes (SIGKILL, SIGSEGV, …); an exception;
   SIGABRT (a failed assertion, but also what native code does when a peer is gone); an exit code alone.
4. Of ranks that raised one error within 5 s, the one whose process was seen to end first: it was named then.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterable
from dataclasses import dataclass, replace

from zerokit.domain.phases import TRAINING_PHASES
from zerokit.launcher.rank_file import RankLog, Record
from zerokit.launcher.secrets import redact
from zerokit.launcher.verdict.evidence import CRASH_SIGNALS, SOON_SECONDS, Evidence, RankExit
from zerokit.report.schema import RankState, signal_name
from zerokit.units import counted, ranks_named

_ALIKE_SECONDS = 5.0
_KINDS_BY_WEIGHT = ("oom", "crash", "exception", "signal", "exit")
_BROKEN_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|remote process (exited|has)|NCCL (error|communicator)"
    r"|unhandled system error|ncclRemoteError|ncclSystemError|watchdog|DistBackendError|DistNetworkError"
    r"|TCPStore|socket (error|timeout)|gloo.*(timed out|EOF|pair)|\bpeer\b",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """One rank's end, at which Unix second. ``step``: the optimizer step that was under way in forward,
    backward and step; in other phases the last one that was done; None in load."""

    rank: int
    state: RankState
    host: str = "unknown"
    error: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    at: float | None = None
    phase: str | None = None
    step: int | None = None
    traceback: str | None = None
    oom: Record | None = None
    left_at: str | None = None
    """Where its script called ``os._exit`` before it had come to its end."""
    left_in: str | None = None
    """The call that was under way there: ``Trainer.train``, or an evaluation, a save and the like."""
    steps: int = 0
    last_line: str | None = None
    """Of its standard error: what argparse says before it ends the script, for instance."""
    consequence: bool = False
    """It ended as a peer's failure makes a rank end: with a broken connection."""

    @property
    def kind(self) -> str:
        """What the report calls the failure: ``oom``, ``exception``, ``signal`` or ``exit``."""
        if self.oom is not None:
            return "oom"
        return "exception" if self.traceback else "signal" if self.signal else "exit"

    def describe(self) -> str:
        """``rank 3 on node-1 was killed by SIGKILL``."""
        if self.exit_code is None and self.signal is None:
            return f"rank {self.rank} on {self.host} failed" + (f": {self.error}" if self.error else "")
        return RankExit(rank=self.rank, host=self.host, code=self.exit_code, signal=self.signal).describe()


# ---- one rank


def rank_end(
    rank: int, evidence: Evidence, exit_: RankExit | None, *, killed_for_memory: bool = False
) -> RankEnd:
    """How one rank ended, by itself: by its file, and by its process's exit, if anybody saw it; its peers are
    considered in :func:`settle`. ``killed_for_memory``: the kernel killed it because the host's memory ran
    out."""
    log, last_words = evidence.logs.get(rank), evidence.last_words.get(rank, "")
    end = (log.last("end") if log else None) or {}
    late = exit_ is not None and exit_.signal in (signals.SIGTERM, signals.SIGKILL)
    if exit_ is not None and late and end.get("state") == "failed" and end.get("exit_code"):
        # torchrun and srun signal a rank as soon as another fails, and Python takes a while to leave after
        # the last line of its file: the code that stands there is the rank's own
        exit_ = replace(exit_, signal=None, code=end["exit_code"], at=end.get("time") or exit_.at)
    error = (log.last("error") if log else None) or {}
    tick = (log.last("tick", "end") if log else None) or {}
    start = (log.last("start") if log else None) or {}
    exit_code = exit_.code if exit_ and exit_.code is not None else None
    aborted = exit_ is not None and exit_.signal == signals.SIGABRT
    oom = _oom_of(log, error, killed=killed_for_memory)
    lines = [line.strip() for line in last_words.splitlines() if line.strip()]
    base = RankEnd(
        rank=rank,
        state=RankState.LOST,
        host=str(start.get("host") or (exit_.host if exit_ else None) or "unknown"),
        signal=(exit_.signal if exit_ else None) or end.get("signal"),
        exit_code=end.get("exit_code") if exit_code is None else exit_code,
        # the launcher may let the process of a rank that failed stay for a while after its last line
        at=error.get("time")
        or (end.get("time") if end.get("state") == "failed" else None)
        or (exit_.at if exit_ else None)
        or tick.get("time"),
        phase=(error or tick).get("phase"),
        step=_step_of(error, tick),
        error=error.get("error") or (end.get("error") if end.get("state") == "failed" else None),
        traceback=error.get("traceback"),
        oom=oom,
        left_at=end.get("left_at"),
        left_in=end.get("left_in"),
        steps=tick.get("steps") or 0,
        last_line=redact(lines[-1]) if lines else None,
        consequence=oom is None
        and bool(_BROKEN_PEER.search(str(error.get("error") or (last_words if aborted else "")))),
    )
    ended_by_run = exit_ is not None and evidence.ended(
        exit_, was_terminated=end.get("state") == "terminated"
    )
    state, text = _state_and_error(
        base, end, bool(error), exit_, ended_by_run=ended_by_run, killed=killed_for_memory
    )
    crashed = exit_ is not None and exit_.signal is not None
    if state is RankState.FAILED and oom is None and not base.consequence and not crashed:
        seen = log.last("oom") if log else None
        if seen is not None and (seen.get("step") or 0) > base.steps:
            base = replace(base, oom=seen)  # in its last step: its script caught the error and left
    return replace(base, state=state, error=text)


def _step_of(error: Record, tick: Record) -> int | None:
    """See :class:`RankEnd`. An error's own ``step`` is the one that would be next, whatever the phase."""
    following = error.get("step") or (tick.get("steps", 0) + 1 if tick else None)
    phase = (error or tick).get("phase")
    if following is None or phase == "load":
        return None
    return int(following) - (phase not in TRAINING_PHASES)


def _state_and_error(
    base: RankEnd, end: Record, recorded: bool, exit_: RankExit | None, *, ended_by_run: bool, killed: bool
) -> tuple[RankState, str | None]:
    if exit_ is not None and exit_.signal is not None:
        name = signal_name(exit_.signal)
        if base.error is not None:  # an exception that was already told; the signal only ended what was left
            return RankState.FAILED, base.error
        if ended_by_run:
            return RankState.TERMINATED, f"ended by zerokit with {name}"
        after = " after its script had finished" if end.get("state") == "finished" else ""
        killer = " by the kernel, which was out of memory" if killed else ""
        return RankState.FAILED, f"killed{killer} with {name}{after}"
    code = exit_.code if exit_ is not None else None
    if recorded or code:
        text = base.error or (f"exited with code {code}" if code else "failed")
        return (RankState.TERMINATED if ended_by_run and not recorded else RankState.FAILED), text
    if not end:
        if ended_by_run:
            return RankState.TERMINATED, "ended by zerokit"
        if code == 0:
            why = (
                "exited with code 0 without finishing its record; did another program take its place (exec)?"
            )
            return RankState.LOST, why
        return RankState.LOST, None
    stated = end.get("state")
    if stated == "failed":
        return RankState.FAILED, base.error or f"exited with code {base.exit_code}"
    return (RankState(stated) if stated in ("finished", "stopped", "terminated") else RankState.LOST), (
        base.error
    )


def _oom_of(log: RankLog | None, error: Record, *, killed: bool) -> Record | None:
    """The fatal allocation: of the error that ended the rank, with what the allocator's observer saw."""
    if error.get("out_of_memory"):
        oom = log.last("oom") if log and error.get("memory") == "gpu" else None
        facts = {name: value for name, value in error.items() if value is not None and name != "traceback"}
        return {**facts, **(oom or {}), "type": "oom"}
    return {"type": "oom", "memory": "host", "killer": True} if killed else None


# ---- all ranks


def settle(ends: Iterable[RankEnd], exited: Iterable[int] = ()) -> tuple[list[RankEnd], RankEnd | None]:
    """Name the first failure; ranks that only lost their peer because of it are ``terminated``. ``exited``:
    the ranks in the order in which their processes were seen to end."""
    ends = _without_leavers(list(ends))
    first = _first_failure([end for end in ends if end.state is RankState.FAILED])
    if first is None:
        return ends, None
    together = {first.rank: first}  # by rule 4
    for end in ends:
        if failed_alike(end, first) and abs((end.at or 0.0) - (first.at or 0.0)) <= _ALIKE_SECONDS:
            together[end.rank] = end
    first = next((together[rank] for rank in exited if rank in together), first)
    return [_as_peer(end, first) for end in ends], first


def failed_alike(end: RankEnd, first: RankEnd) -> bool:
    """Whether another rank ended with the very error of the first failure: a fault of the script."""
    is_another = end.rank != first.rank and end.state is RankState.FAILED
    return is_another and bool(end.traceback) and end.error == first.error


def _without_leavers(ends: list[RankEnd]) -> list[RankEnd]:
    """A rank that left with ``os._exit(0)`` has finished where its peers did as much and no more.

    Scripts end so on purpose, to pass by libraries that hang at exit. One that did fewer steps than a
    peer, or none where a peer's script came to its end, left half-way; so did one whose peers lost it, and
    one that left from inside a Trainer's training, whatever its peers did.
    """
    finished = [end for end in ends if end.state is RankState.FINISHED]
    most = max((end.steps for end in finished), default=0)
    others_ended = any(end.left_at is None for end in finished)
    missed = any(end.state is RankState.FAILED and end.consequence for end in ends)

    def early(end: RankEnd) -> bool:
        left_early = end.state is RankState.FINISHED and end.left_at is not None
        behind = missed or end.steps < most or (others_ended and most == 0)
        return left_early and (behind or end.left_in is not None)

    return [
        replace(end, state=RankState.LOST, error=f"left with os._exit(0) at {end.left_at} after {end.steps} "
                "steps, before its script had ended"
                + (f" ({end.left_in} was under way)" if end.left_in else ""))
        if early(end) else end
        for end in ends
    ]  # fmt: skip


def left_problems(ends: Iterable[RankEnd]) -> list[str]:
    """A sentence where ranks count as finished that left with ``os._exit(0)``: nobody saw their end."""
    left = [end for end in ends if end.state is RankState.FINISHED and end.left_at is not None]
    if not left:
        return []
    names = ranks_named([end.rank for end in left])
    return [
        f"{names} left with os._exit(0) at {left[0].left_at} after {counted(left[0].steps, 'step')}; what "
        "follows there never ran, and whether the training was complete is not known"
    ]


def _first_failure(failed: list[RankEnd]) -> RankEnd | None:
    """The failure that explains the others, by the rule at the top of this file."""
    causes = [end for end in failed if not end.consequence] or failed
    earliest = min((end.at for end in causes if end.at is not None), default=0.0)
    close = [end for end in causes if end.at is None or end.at - earliest <= SOON_SECONDS]
    return min(close, key=_telling, default=None)


def _telling(end: RankEnd) -> tuple[int, bool, float, int]:
    crashed = end.kind == "signal" and end.signal in CRASH_SIGNALS and end.error is not None
    weight = _KINDS_BY_WEIGHT.index("crash" if crashed else end.kind)
    return weight, end.at is None, end.at or 0.0, end.rank


def _as_peer(end: RankEnd, first: RankEnd) -> RankEnd:
    if end.rank == first.rank or end.state is not RankState.FAILED:
        return end
    by_sigterm = end.signal == signals.SIGTERM
    return replace(end, state=RankState.TERMINATED) if end.consequence or by_sigterm else end
