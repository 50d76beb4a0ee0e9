"""A gap is halved from either side."""

from __future__ import annotations

import pytest

from zerokit.search.gap import halved


@pytest.mark.parametrize(
    ("misfit", "fitting", "found"), [(0, 100, 37), (100, 0, 36), (0, 37, 37), (36, 37, 37)]
)
def test_the_number_next_to_one_that_does_not_fit_is_found(misfit: int, fitting: int, found: int) -> None:
    asked: list[int] = []

    def attempt(number: int) -> str | None:
        asked.append(number)
        fits = number >= 37 if fitting > misfit else number < 37
        return f"on {number}" if fits else None

    assert halved(misfit, fitting, f"on {fitting}", attempt) == (found, f"on {found}")
    assert len(asked) <= abs(fitting - misfit).bit_length()
