"""The likely cause of a hang, and the words in which ranks are named and shown to wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.launcher.verdict.rank_view import Call, RankView

_MAY_PASS = frozenset({"data_loader", "compilation", "child_process", "lock", "input_output", "storage",
                       "sleep", "elsewhere", "network"})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """``kind`` is for programs; ``what`` names ranks, collective and location; ``fix`` what to do."""

    kind: str
    what: str
    fix: str
    ranks: tuple[int, ...] = ()

    @property
    def may_pass(self) -> bool:
        """Whether it may be slow, and no hang: a rank waits for something outside the run."""
        return self.kind in _MAY_PASS

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"

    def to_dict(self) -> dict[str, Any]:
        """The report's ``hang``."""
        return {"kind": self.kind, "what": self.what, "fix": self.fix, "ranks": list(self.ranks)}


def names(views: Sequence[RankView]) -> str:
    """``ranks 0, 3``, at most eight."""
    ranks = ", ".join(str(view.rank) for view in views[:8]) + (" …" if len(views) > 8 else "")
    return f"rank{'s' if len(views) > 1 else ''} {ranks}"


def verb(views: Sequence[RankView], singular: str, plural: str) -> str:
    """The verb for so many ranks."""
    return singular if len(views) == 1 else plural


def ranks_of(views: Sequence[RankView]) -> tuple[int, ...]:
    """Their numbers."""
    return tuple(view.rank for view in views)


def waiting_in(views: Sequence[RankView]) -> list[RankView]:
    """Those that wait in a collective."""
    return [view for view in views if view.waits_in is not None]


def they_wait(views: Sequence[RankView], culprits: Sequence[RankView]) -> str:
    """``; rank 0 waits in all_reduce of [4] float32 (step 5, train.py:31)``: the others, and where."""
    waiting = [view for view in waiting_in(views) if view not in culprits]
    call = waiting[0].waits_in if waiting else None
    if call is None:
        return ""
    alike = [view for view in waiting if str(view.waits_in) == str(call)]
    return f"; {names(alike)} {verb(alike, 'waits', 'wait')} in {call}{when(call, alike[0])}"


def when(call: Call, view: RankView) -> str:
    """`` (step 5, train.py:31)``: without the step where there is no engine that counts them."""
    step = f"step {call.step + 1}" if call.phase not in ("", "load") else ""
    text = (step + at(view)).removeprefix(", ")
    return f" ({text})" if text else ""


def at(view: RankView) -> str:
    """``, train.py:31``: where in the user's script a rank is; empty where it is in none."""
    location = view.script_frame
    return "" if location is None else f", {location}"
