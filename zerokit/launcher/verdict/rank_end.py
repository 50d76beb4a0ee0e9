"""How each rank ended and which failure came first: judged from its file and from what the guard saw."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerokit.launcher.rank_file import RankLog, Record

_SOON_SECONDS = 0.3  # ends closer together than this may have been seen in any order
_FATAL = {
    int(number)
    for number in (signals.SIGKILL, signals.SIGSEGV, signals.SIGBUS, signals.SIGILL, signals.SIGABRT,
                   signals.SIGFPE)
}  # fmt: skip
_BROKEN_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|remote process (exited|has)|NCCL (error|communicator)"
    r"|unhandled system error|ncclRemoteError|ncclSystemError|watchdog|DistBackendError|DistNetworkError"
    r"|TCPStore|socket (error|timeout)|gloo.*(timed out|EOF|pair)|peer",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a rank's process ended, as far as the supervisor saw it."""

    rank: int
    host: str | None = None
    code: int | None = None
    signal: int | None = None
    at: float | None = None
    by_us: bool = False
    out_of_memory_killer: bool = False

    @classmethod
    def of(cls, seen: Any) -> Exit:
        """From the supervisor's record: an object or a mapping with these names."""

        def get(name: str) -> Any:
            return seen.get(name) if isinstance(seen, Mapping) else getattr(seen, name, None)

        code = get("code")
        return cls(
            rank=int(get("rank")),
            host=get("host"),
            code=get("exit_code") if code is None else code,
            signal=get("signal"),
            at=get("at"),
            by_us=bool(get("by_us")),
            out_of_memory_killer=bool(get("out_of_memory_killer") or get("oom_killed")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """One rank's end.

    ``state``: ``finished``, ``stopped`` (at the step limit), ``failed``, ``terminated`` (by us, or by a
    peer's failure) or ``lost``.
    """

    rank: int
    state: str
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
    steps: int = 0
    consequence: bool = False
    """The error is what a peer's failure looks like from here: a broken connection."""


def judge(rank: int, log: RankLog | None, exit_: Exit | None) -> RankEnd:
    """How one rank ended, by itself; peers are considered in :func:`settle`."""
    end = log.last("end") if log else None
    error = log.last("error") if log else None
    tick = log.last("tick", "end") if log else None
    base = RankEnd(
        rank=rank,
        state="lost",
        signal=(exit_.signal if exit_ else None) or (end or {}).get("signal"),
        exit_code=exit_.code if exit_ and exit_.code is not None else (end or {}).get("exit_code"),
        at=(error or {}).get("time") or (exit_.at if exit_ else None) or (tick or {}).get("time"),
        phase=(error or tick or {}).get("phase"),
        step=(error or {}).get("step") or ((tick or {}).get("steps", 0) + 1 if tick else None),
        error=(error or {}).get("error") or _stated_reason(end),
        traceback=(error or {}).get("traceback"),
        oom=_oom_of(log, error, exit_),
        left_at=(end or {}).get("left_at"),
        steps=(tick or {}).get("steps") or 0,
        consequence=bool(error and _BROKEN_PEER.search(str(error.get("error")))),
    )
    return _with_state(base, end, error, exit_)


def _stated_reason(end: Record | None) -> str | None:
    """Why the rank says it failed: the text of its ``sys.exit("...")``."""
    return end.get("error") if end is not None and end.get("state") == "failed" else None


def _with_state(base: RankEnd, end: Record | None, error: Record | None, exit_: Exit | None) -> RankEnd:
    if exit_ is not None and exit_.signal is not None:
        return _signalled(base, end, exit_)
    if error is not None or (exit_ is not None and exit_.code):
        text = base.error or (f"exited with code {exit_.code}" if exit_ and exit_.code else "failed")
        state = "terminated" if exit_ is not None and exit_.by_us and error is None else "failed"
        return replace(base, state=state, error=text)
    if end is None:
        why = None
        if exit_ is not None and exit_.by_us:
            return replace(base, state="terminated", error="ended by zerokit")
        if exit_ is not None and exit_.code == 0:
            why = (
                "exited with code 0 without finishing its record; did another program take its place (exec)?"
            )
        return replace(base, state="lost", error=why)
    stated = end.get("state")
    if stated == "failed":
        return replace(base, state="failed", error=base.error or f"exited with code {base.exit_code}")
    return replace(base, state=stated if stated in ("finished", "stopped", "terminated") else "lost")


def _signalled(base: RankEnd, end: Record | None, exit_: Exit) -> RankEnd:
    name = _signal_name(exit_.signal or 0)
    if base.error is not None:  # an exception that was already told; the signal only ended what was left
        return replace(base, state="failed")
    if exit_.by_us:
        return replace(base, state="terminated", error=f"ended by zerokit with {name}")
    after = " after its script had finished" if end and end.get("state") == "finished" else ""
    killer = " by the kernel, which was out of memory" if exit_.out_of_memory_killer else ""
    return replace(base, state="failed", error=f"killed{killer} with {name}{after}")


def _oom_of(log: RankLog | None, error: Record | None, exit_: Exit | None) -> Record | None:
    """The fatal allocation: of the error that ended the rank, with what the allocator's observer saw."""
    if error is not None and error.get("out_of_memory"):
        seen = log.last("oom") if log and error.get("memory") == "gpu" else None
        known = {name: value for name, value in error.items() if value is not None and name != "traceback"}
        return {**known, **(seen or {}), "type": "oom"}
    if exit_ is not None and exit_.out_of_memory_killer:
        return {"type": "oom", "memory": "host", "killer": True}
    return None


def settle(ends: Iterable[RankEnd]) -> tuple[list[RankEnd], RankEnd | None]:
    """Name the first failure; ranks that only lost their peer because of it are ``terminated``."""
    ends = _without_leavers(list(ends))
    failed = [end for end in ends if end.state == "failed"]
    first = _first(failed)
    if first is None:
        return ends, None
    return [_as_peer(end, first) for end in ends], first


def _without_leavers(ends: list[RankEnd]) -> list[RankEnd]:
    """A rank that left with ``os._exit(0)`` has finished where its peers did as much and no more.

    Scripts end so on purpose, to pass by libraries that hang at exit. One that did fewer steps than a
    peer, or none where a peer's script came to its end, left half-way.
    """
    finished = [end for end in ends if end.state == "finished"]
    most = max((end.steps for end in finished), default=0)
    others_ended = any(end.left_at is None for end in finished)

    def early(end: RankEnd) -> bool:
        left = end.state == "finished" and end.left_at is not None
        return left and (end.steps < most or (others_ended and most == 0))

    return [
        replace(end, state="lost", error=f"left with os._exit(0) at {end.left_at} after {end.steps} steps, "
                "before its script had ended")
        if early(end) else end
        for end in ends
    ]  # fmt: skip


def _first(failed: list[RankEnd]) -> RankEnd | None:
    own = [end for end in failed if not end.consequence] or failed
    if not own:
        return None
    times = [end.at for end in own if end.at is not None]
    earliest = min(times, default=0.0)
    close = [end for end in own if end.at is None or end.at - earliest <= _SOON_SECONDS]
    killed = [end for end in close if end.error is not None and end.signal in _FATAL]
    telling = [end for end in close if end.oom is not None]
    return min(telling or killed or close, key=lambda end: (end.at is None, end.at or 0.0, end.rank))


def _as_peer(end: RankEnd, first: RankEnd) -> RankEnd:
    if end.rank == first.rank or end.state != "failed":
        return end
    by_sigterm = end.signal == signals.SIGTERM
    return replace(end, state="terminated") if end.consequence or by_sigterm else end


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
