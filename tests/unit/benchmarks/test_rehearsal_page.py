"""docs/rehearsal-accuracy.md is what its command writes, and holds every comparable row."""

from __future__ import annotations

import json

import pytest

from benchmarks import rehearsal_page


def test_the_page_is_what_the_command_writes() -> None:
    assert rehearsal_page.PAGE.read_text(encoding="utf-8") == rehearsal_page.write_text(), (
        "run: python -m benchmarks.rehearsal_page"
    )


@pytest.mark.parametrize("one", rehearsal_page.PEAKS.values(), ids=rehearsal_page.PEAKS)
def test_every_run_with_a_complete_rehearsal_is_compared(one: rehearsal_page.Peaks) -> None:
    def named(file: str) -> dict[str, dict[str, object]]:
        lines = (rehearsal_page.DATA / file).read_text().splitlines()
        return {row["name"]: row for row in map(json.loads, lines)}

    measured, predicted = named(one.measured), named(one.predicted)
    both = {
        name
        for name, row in measured.items()
        if not row.get("error") and predicted.get(name, {}).get("complete", name in predicted)
    }
    found = rehearsal_page.cases(one)
    assert {case.name for case in found} == both and len(found) == len(both) >= 2
    for case in found:
        said = predicted[case.name]["peak_allocated_bytes"]
        assert isinstance(said, int)
        assert case.measured_bytes * (1 + case.peak_error) == pytest.approx(said)


def test_a_step_is_read_off_at_the_hosts_speed() -> None:
    by_factor = {"0.5": 1.0, "1.0": 2.0, "1.5": 4.0}
    assert rehearsal_page.at_factor(0.75, by_factor) == 1.5
    assert rehearsal_page.at_factor(1.5, by_factor) == 4.0
    with pytest.raises(ValueError, match="host of 2"):
        rehearsal_page.at_factor(2.0, by_factor)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0"), (-4e-6, "0"), (0.0005, "+0.050 %"), (-0.004, "-0.40 %"), (0.3, "+30.0 %")],
)
def test_errors_in_words(share: float, words: str) -> None:
    assert rehearsal_page.percent(share) == words
