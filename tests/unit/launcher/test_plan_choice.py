"""Which plan a launch takes, and what it says of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plans import write_plan
from zerokit.launcher.plan_choice import choose_plan

NONE: dict[str, object] = {"plan": None, "recipe": None, "deepspeed": None, "no_plan": False}


def chosen(*arguments: str, **named: object) -> tuple[str | None, list[str]]:
    """The plan, and what was said."""
    said: list[str] = []
    options = {**NONE, **named}
    plan = choose_plan(
        **options,  # type: ignore[arg-type]
        overrides=(), arguments=arguments, plan_recipe=lambda *given: None, say=said.append,
    )  # fmt: skip
    return plan, said


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        ((), {}, ["no plan is used: there is no zerokit-plan here; `zerokit plan` makes one"]),
        ((), {"no_plan": True}, []),  # was asked for
        (("--deepspeed_config=ds.json",), {}, []),  # the script has one of its own
        ((), {"deepspeed": "ds.json"}, []),
    ],
)
def test_a_launch_without_a_plan_says_so_where_nobody_asked_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    named: dict[str, object],
    said: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    plan, lines = chosen(*arguments, **named)
    assert (plan, len(lines)) == (None, len(said))
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


def test_the_plan_found_here_is_taken_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "zerokit-plan")
    plan, (line,) = chosen()
    assert plan == "zerokit-plan"
    assert line.startswith("plan: zerokit-plan, found here")
