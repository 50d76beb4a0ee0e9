"""Lists of ranks."""

from __future__ import annotations

import pytest

from zerokit.errors import InputError
from zerokit.rehearsal.ranks import parse


def test_ranks_are_numbers_or_the_last_one() -> None:
    assert parse("0, 7,last") == (0, 7, "last")


@pytest.mark.parametrize("text", ["", "0,", "first", "-1", "0;1"])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="ranks"):
        parse(text)
