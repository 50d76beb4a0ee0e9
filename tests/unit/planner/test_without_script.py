"""A plan made from that of a script, without the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.caches import own_cache_but_traces
from tests.support.played_rehearsals import play
from tests.support.ranks import write_script
from tests.support.scripts_read import TRAINER
from zerokit.cli import run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache_but_traces(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("is_here", [True, False])
def test_it_has_the_models_name_and_says_that_it_is_not_rehearsed(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, lambda strategy, _: {"batch_rows": strategy.settings.micro_batch})
    write_script(tmp_path, TRAINER, "train.py").rename("own.py")
    pins = ("--zero", "1", "--micro-batch", "4", "--checkpointing", "none", "--rehearsal-seconds", "1")
    assert run(["plan", "--gpus", "2", "--gpu", "h200", *pins, "--", "own.py", "--seed", "3"]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    if not is_here:
        Path("own.py").unlink()
    again = ("--recipe", "zerokit-plan", "gpu=a100-80gb", "--gpus", "4", "--out", "again")
    assert run(["plan", *again, "--explain"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.split(" on ")[0] == title.split(" on ")[0] and "4 × a100-80gb" in first
    text = " ".join(" ".join(others).replace("\\", " ").split())
    script = "own.py --seed 3" if is_here else "SCRIPT"
    assert "not rehearsed with own.py, as the plan was that it is made from; to do so: zerokit plan" in text
    assert f"gpu=a100-80gb --gpus 4 -- {script}" in text
    assert ("zerokit launch --plan again own.py --seed 3" in text) is is_here


def test_a_plan_without_a_script_has_no_such_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "gpt2", "--gpus", "2", "--gpu", "h200"]) == 0
    assert run(["plan", "--recipe", "zerokit-plan", "gpu=a100-80gb", "--explain"]) == 0
    assert "not rehearsed" not in capsys.readouterr().out
