"""What a plan says of its choice and of the next best."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command import as_json, call, move_elsewhere
from zerokit.cli import run
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import REHEARSED, Candidate, Strategy
from zerokit.planner.request import resolve
from zerokit.rules import first_violation
from zerokit.search.explain import runner_up, strategy_words
from zerokit.search.plan import make_plan
from zerokit.values import replace

TINY = {"params": "10m", "gpu": "h200", "seq_len": "128", "micro_batch": "1", "all_gpus": True}
FEWER_GPUS = "a model or batch so small is better trained on fewer GPUs"


@pytest.mark.parametrize(("gpus", "is_advised"), [("1", False), ("2", True)])
def test_fewer_gpus_are_advised_only_where_there_are_several(gpus: str, is_advised: bool) -> None:
    options = {**TINY, "gpus": gpus, "gradient_accumulation": "1"}
    advice = " ".join(make_plan(resolve(options).request, top=1).advice)
    assert " of the step goes to kernel launches" in advice
    assert (FEWER_GPUS in advice) is is_advised


@pytest.mark.parametrize(
    ("of_choice", "of_other", "is_said"),
    [(REHEARSED, "traced", True), (REHEARSED, REHEARSED, False), ("traced", "traced", False)],
)
def test_a_next_best_that_was_not_rehearsed_is_said_to_be(
    of_choice: str, of_other: str, is_said: bool
) -> None:
    """Beside the rehearsed times of strategies like it its own would read as a contradiction."""
    plan = make_plan(resolve({**TINY, "gpus": "2"}).request, top=2)

    def on(candidate: Candidate, basis: str) -> Candidate:
        return replace(candidate, memory=replace(candidate.memory, basis=basis))

    said = runner_up(on(plan.alternatives[0], of_other), on(plan.chosen, of_choice), plan.cluster)
    assert ("not rehearsed, estimated" in said) is is_said, said


def test_what_zero_3_would_take_more_is_what_its_estimate_has_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = ["--model", "llama-3.1-8b", "--method", "lora", "--gpus", "1", "--gpu", "a100-80gb"]
    assert run(["plan", *job, "--out", str(tmp_path / "plan"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    chosen = plan["chosen"]
    batch = ["--micro-batch", str(chosen["micro_batch"]), "--gradient-accumulation",
             str(chosen["gradient_accumulation"])]  # fmt: skip
    assert run(["estimate", *job, *batch, "--zero", "3", "--json"]) in (0, 3)
    third = json.loads(capsys.readouterr().out)
    (said,) = (line for line in plan["advice"] if "ZeRO-3 would take" in line)
    activations = [body["per_rank"][0]["components"]["activations"] for body in (third, chosen["estimate"])]
    assert f"+{(activations[0] - activations[1]) / 2**30:.1f} GiB of activations" in said
    assert "even where the weight is frozen" in said and "parameters" not in said  # one GPU divides none


def test_a_strategy_of_another_engine_is_named_by_it_and_kept_out_of_deepspeeds_rules() -> None:
    strategy = Strategy(settings=Fsdp2Settings(offload=True), data_parallel=8)
    assert strategy_words(strategy) == (
        "FSDP2, optimizer offload to cpu, weight offload to cpu, data parallel 8, micro-batch 1, "
        "no checkpointing"
    )
    assert first_violation(strategy) is None


JOB = ("--params", "14b", "--method", "lora", "--offload-optimizer", "none", "--offload-param", "none",
       "--gpu", "l4", "--gpus", "1")  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", ["size", "plan"])
def test_what_would_make_it_fit_says_may_fit_where_a_plan_with_it_does(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, refusal = call(capsys, command, *JOB)
    assert code == 3
    advice = re.search(r"\(--gpus (\d+)\): .*?\(may fit: (.*? headroom)\)", " ".join(refusal.split()))
    assert advice is not None and "barely" not in refusal, refusal
    more = (*JOB[:-1], advice[1])
    code, out, _ = call(capsys, "plan", *more)
    assert code == 0 and "May fit: " in out and f" per GPU, {advice[2]}\n" in out
    size = as_json(capsys, "size", *more)
    assert f" per GPU, may fit: {advice[2]})" in size["answer"][0]
    assert [row.get("surely_fits") for row in size["sizes"]] == [False, False]


def test_a_kind_that_only_may_fit_is_named_after_one_that_surely_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--params", "14b", "--method", "lora", "--gpu", "l4,a100-80gb", "--host-ram", "76GiB")
    size = as_json(capsys, "size", *words)
    first, _, second = size["answer"][0].partition("; ")
    assert "fewest GPUs: 1 × a100-80gb (" in first and "l4 (with offload, may fit: " in second
    assert {row["gpu"] for row in size["sizes"] if row["gpus"] == 1 and row.get("surely_fits")} == {
        "a100-80gb"
    }
    traced = as_json(capsys, "size", "--model", "qwen3-8b", "--method", "lora", "--gpu", "a100-40gb",
                     "--margin", "0")  # fmt: skip
    assert "barely: " in traced["answer"][0] and traced["sizes"][0]["surely_fits"] is True
