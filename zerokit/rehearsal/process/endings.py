"""How a rehearsal ends before its script does. None is an ``Exception``, which a script might keep."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Iterable
from pathlib import Path

from zerokit.rehearsal.process.guesses import is_library


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


class NeedsWhole(BaseException):
    """A few layers do not tell of the others."""


OF_FEW_ROUNDS = (ZeroDivisionError, IndexError, statistics.StatisticsError)
"""What a script meets that counts on more rounds of its training loop than were rehearsed: the mean of
times after a warm-up."""
_WRONG_ARGUMENT = 2  # the exit code of argparse and click
_HF_ARGUMENT_PARSER = "hf_argparser.py"  # of Transformers, and a copy in TRL

_HF_MISMATCH = "trainer_config_finalize"
"""What tells all values of a DeepSpeed file that are not the Trainer's arguments
(transformers/integrations/deepspeed.py:260, 5.23)."""


def cause_of(error: BaseException, *, has_guessed: bool) -> str:
    """``argument``: the script does not take its arguments; ``script``: raised in the script's own file;
    ``rehearsal``: anything else, which a run may not meet. ``has_guessed``: values were guessed, so that a
    run may take other branches."""
    if isinstance(error, SystemExit):
        return "argument" if error.code == _WRONG_ARGUMENT else "rehearsal"
    frames = traceback.extract_tb(error.__traceback__)
    raised_in = frames[-1].filename if frames else ""
    if Path(raised_in).name.endswith(_HF_ARGUMENT_PARSER):
        return "argument"
    if frames and frames[-1].name == _HF_MISMATCH:
        return "argument"
    of_surroundings = (OSError, MemoryError, *OF_FEW_ROUNDS)
    is_own = isinstance(error, Exception) and not isinstance(error, of_surroundings)
    if has_guessed or not is_own or not raised_in or is_library(raised_in):
        return "rehearsal"
    return "rehearsal" if raised_in.startswith(_PACKAGE) else "script"


_PACKAGE = str(Path(__file__).resolve().parents[2])
