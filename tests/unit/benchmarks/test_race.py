"""docs/race.md is what its command writes, of every run that was predicted."""

from __future__ import annotations

import json

import pytest

from benchmarks import race


def _by_id(path: race.Path) -> dict[str, dict[str, object]]:
    return {row["id"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def test_the_page_is_what_the_command_writes() -> None:
    pytest.importorskip("jinja2")
    assert race.PAGE.read_text(encoding="utf-8") == race.write_text(), "run: python -m benchmarks.race"


def test_every_case_was_predicted_and_measured_as_it_is() -> None:
    said, measured = _by_id(race.SAID), _by_id(race.ROWS)
    planned = json.loads(race.CASES.read_text(encoding="utf-8"))
    assert [case["id"] for case in planned] == [*said] == [*measured]
    for case in planned:
        row = measured[case["id"]]
        # the configuration is completed by batch, optimizer and clipping
        assert {key: row[key] for key in case if key != "deepspeed_config"} == {
            key: value for key, value in case.items() if key != "deepspeed_config"
        }
        assert case["deepspeed_config"].items() <= dict(row["deepspeed_config"]).items()  # type: ignore[call-overload]


def test_both_runners_of_a_job_train_as_many_tokens_a_step() -> None:
    for found in race.measured():
        tokens = {round(run.tokens_per_second * run.seconds) for run in found.values()}
        assert len(tokens) == 1 and len(found) >= 2


def test_a_gain_is_the_ratio_of_steps() -> None:
    found = next(found for found in race.measured() if "fsdp2" in found)
    gain, _ = race.gains(found)
    documented, plan = found["documented"].row, found["plan"].row
    assert gain == pytest.approx(documented["step_seconds_median"] / plan["step_seconds_median"])
