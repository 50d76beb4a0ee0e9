"""How a rehearsal ends before its script does. None is an ``Exception``, which a script might keep."""

from __future__ import annotations

from collections.abc import Iterable


class StopRehearsal(BaseException):
    """Enough was seen: ends the script. Not an ``Exception``, so that no handler of the script's keeps it."""


class NotRehearsed(BaseException):
    """The rehearsal cannot go on: an operator or a service that has no stand-in."""

    def __init__(self, operator: str, reason: str) -> None:
        self.operator, self.reason = operator, reason
        super().__init__(f"{operator}: {reason}")


class NeedsSenders(BaseException):
    """These ranks have to be rehearsed before this one."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = tuple(ranks)
        super().__init__(f"ranks {self.ranks}")
