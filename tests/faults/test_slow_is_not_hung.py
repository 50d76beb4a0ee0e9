"""Slow and healthy programs on two real CPU ranks: nothing of what they do for 7 s is ended after 4 s."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs

needs("deepspeed")
SCRIPT = Path(__file__).parents[1] / "scripts" / "slow.py"
DEEDS = re.findall(r"^def (\w+)\(\) -> None:", SCRIPT.read_text(), re.M)[:-1]  # the last is main
IN_CI = ["one_long_call"]  # children at work: test_children.py


@pytest.mark.slow
@pytest.mark.parametrize(
    "deeds",
    [
        pytest.param(IN_CI, id="one"),
        pytest.param([deed for deed in DEEDS if deed not in IN_CI], id="the-rest", marks=pytest.mark.slow),
    ],
)
def test_a_healthy_run_is_never_ended(tmp_path: Path, deeds: list[str]) -> None:
    assert len(DEEDS) == 15
    options = ["--num-ranks", "2", "--heartbeat", "4", "--grace", "2", "--style", "none"]
    run = Run(Path(sys.executable), tmp_path, [*options, str(SCRIPT), *deeds], {})
    try:
        code, out, err = run.end(400)
        assert code == 0, err
        seconds = {name: float(took) for name, took in re.findall(r"^(\w+): ([\d.]+) s$", out, re.M)}
        assert sorted(seconds) == sorted(deeds) and min(seconds.values()) > 5, seconds
    finally:
        run.clean_up()
