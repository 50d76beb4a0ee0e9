"""The step time and the tokens per second of a plan for a script, as its rehearsals show them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.caches import own_cache_but_traces
from tests.support.played_rehearsals import play
from tests.support.ranks import write_script
from tests.support.scripts_read import RAW, TRAINER
from zerokit.cli import run
from zerokit.domain.script_profile import same_memory
from zerokit.planner import documents
from zerokit.planner.plan_result import PlanResult
from zerokit.rehearsal.result import Stop
from zerokit.script.entry_points import Target
from zerokit.script_planner import plan_script
from zerokit.script_planner.rehearsals import RehearsedScript
from zerokit.units import format_seconds

STEP_SECONDS = 0.25


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache_but_traces(tmp_path, monkeypatch)


def planned(folder: Path) -> PlanResult:
    target = Target(script=str(write_script(folder, TRAINER, "train.py")), module=None, arguments=())
    options = {"gpus": "2", "gpu": "h200", "zero": "1", "tp": "1", "offload_optimizer": "none",
               "micro_batch": "4", "global_batch": "8", "checkpointing": "none"}  # fmt: skip
    return plan_script(target, options, seconds=0)


@pytest.mark.parametrize(("seconds", "goes_on"), [(200, True), (2000, False)])
def test_a_rehearsal_that_may_outlast_the_time_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, goes_on: bool
) -> None:
    play(monkeypatch, lambda strategy, _: {"batch_rows": strategy.settings.micro_batch, "batch_columns": 130})
    target = Target(script=str(write_script(tmp_path, TRAINER, "train.py")), module=None, arguments=())
    said: list[str] = []
    plan_script(target, {"gpus": "2", "gpu": "h200"}, seconds=seconds, say=said.append)
    told = [line for line in said if line.startswith("rehearsal ")]
    assert told[0].startswith(
        "rehearsal 1, to learn what the script takes: ZeRO-2, data parallel 2, micro-batch 1, "
    )
    assert all(" left to begin others" in line for line in told)
    assert all(line.endswith("; this one may take 5.0 min)") is goes_on for line in told)


def test_after_the_time_one_plan_that_fits_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it turns out slower than others were estimated to be: these are not rehearsed any more."""
    times = iter(range(1, 100))
    rehearsed = play(
        monkeypatch,
        lambda strategy, _: {"batch_rows": strategy.settings.micro_batch, "batch_columns": 130},
        step_seconds=lambda _: 1.5 ** next(times),
    )
    target = Target(script=str(write_script(tmp_path, TRAINER, "train.py")), module=None, arguments=())
    found = plan_script(target, {"gpus": "2", "gpu": "h200"}, seconds=0)
    of_plans = [record for record in found.rehearsals if not record.probe]
    assert len(of_plans) == 1 and of_plans[0].strategy == rehearsed[-1]
    assert same_memory(found.chosen.strategy) == same_memory(rehearsed[-1])
    assert found.chosen.estimate.basis == "rehearsed"
    (note,) = (
        note for note in found.assumptions if note.startswith("may be faster, but not rehearsed: ZeRO")
    )
    assert note.endswith("; the time of rehearsal_seconds was over")
    pace = found.chosen.estimate.step_seconds
    assert all(other.estimate.step_seconds >= pace for other in found.alternatives)


def test_what_stopped_a_rehearsal_begins_with_its_line() -> None:
    for location, shown in (("a.py:3", "a.py:3: no such operator"), ("", "no such operator")):
        stop = Stop(location=location, operator="", reason="no such operator")
        done: Any = SimpleNamespace(ranks=(), stopped=stop)
        assert RehearsedScript(strategy=None, done=done, rehearsed=None).why_not == shown  # type: ignore[arg-type]


@pytest.mark.parametrize("sequences", [1, 2])
def test_tokens_per_second_count_what_the_batch_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequences: int
) -> None:
    """Both sequences of a pair, as its line of the batch has them."""

    def shown(strategy: Any, _: Any) -> dict[str, int]:
        micro = strategy.settings.micro_batch
        return {"loader_rows": micro, "batch_rows": sequences * micro, "batch_columns": 130}

    play(monkeypatch, shown, step_seconds=STEP_SECONDS)
    found = planned(tmp_path)
    rows = "8 pairs × 2" if sequences == 2 else "8"
    assert documents.batch(found.chosen).endswith(f" = {rows} × 130 tokens")
    rate = 4 * sequences * 130 / STEP_SECONDS  # of one GPU's rows a step
    body = found.to_dict()
    assert body["chosen"]["estimate"]["tokens_per_second_per_gpu"] == pytest.approx(rate)
    per_billion = format_seconds(1e9 / (2 * rate))
    assert f"{rate:,.0f} tokens/s per GPU, {per_billion} per 1e9 tokens" in documents.pace(found.chosen)
    assert not any("tokens per second" in note for note in found.assumptions)


def first_screen(
    folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, source: str = TRAINER
) -> list[str]:
    script = str(write_script(folder, source, "train.py"))
    hardware = ("--gpus", "2", "--gpu", "h200", "--zero", "1", "--tp", "1", "--micro-batch", "4")
    chosen = ("--global-batch", "8", "--checkpointing", "none", "--out", str(folder / "plan"))
    assert run(["plan", *hardware, *chosen, "--", script, *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("source", "precision", "says_so"),
    [(TRAINER, "bf16", True), (TRAINER, "", False), (RAW, "bf16", False)],
)
def test_a_plan_for_a_script_without_deepspeed_says_that_it_is_under_deepspeed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    precision: str,
    says_so: bool,
) -> None:
    """Its master weights are not in the script's own figures."""
    play(monkeypatch, lambda strategy, _: {"batch_columns": 130})
    arguments = ("--bf16", "True") if (source, precision) == (TRAINER, "bf16") else ()
    said = first_screen(tmp_path, capsys, *arguments, source=source)
    line = "Planned under DeepSpeed (fp32 master weights): alone the script may take less"
    assert (line in said) is says_so and len(said) <= 24


def test_the_host_speed_that_a_step_is_rehearsed_at_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, lambda *_: {"batch_columns": 130}, host_factor=0.53)
    said = first_screen(tmp_path, capsys)
    assert "The step is rehearsed at the host speed kept on this machine, 0.53" in said
    play(monkeypatch, lambda *_: {"batch_columns": 130})
    assert not any("host speed" in line for line in first_screen(tmp_path, capsys))


def test_a_step_that_no_rehearsal_timed_is_called_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, lambda *_: {}, step_seconds=None, untimed="the script took 2")
    chosen = planned(tmp_path).chosen
    assert documents.pace(chosen).startswith("Step, estimated: ")
    assert documents.pace_notes(chosen)[0] == "The rehearsal has no step time: the script took 2"
    play(monkeypatch, lambda *_: {}, step_seconds=STEP_SECONDS)
    chosen = planned(tmp_path).chosen
    assert documents.pace(chosen).startswith("Step: 250 ms") and not documents.pace_notes(chosen)
