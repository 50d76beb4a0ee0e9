"""What an answer says to do next, as a new user reads it."""

from __future__ import annotations

import pytest

from tests.support.shown import following
from zerokit.cli import run


@pytest.mark.parametrize(
    ("given", "strategy", "batch"),
    [
        (
            ("--zero", "3", "--micro-batch", "2", "--checkpointing", "full"),
            "ZeRO-3, no offload",
            "2 per GPU × 1",
        ),
        (("--zero", "3"), "ZeRO-3, no offload", "1 per GPU × 1"),  # what was not given is pinned, too
        (("--method", "lora"), "ZeRO-0, no offload", "1 per GPU × 1"),
        (("--zero", "2", "--offload-optimizer", "cpu"), "ZeRO-2, optimizer offload to cpu", "1 per GPU × 1"),
    ],
)
def test_what_fits_comes_with_the_command_that_plans_it(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], strategy: str, batch: str
) -> None:
    kind = ["--model", "llama-3.1-8b", "--gpus", "4", "--gpu", "h200"]
    assert run(["estimate", *kind, *given]) == 0
    (offered,) = following(capsys.readouterr().out)
    assert run(offered[1:]) == 0
    planned = " ".join(capsys.readouterr().out.split())
    checkpointing = "full" if "full" in given else "no"
    assert f"{strategy}, data parallel 4, {checkpointing} checkpointing" in planned and batch in planned


def test_without_a_gpu_an_estimate_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--model", "llama-3.1-8b"]) == 0
    assert "--gpus N --gpu NAME" in capsys.readouterr().out.partition("\nNext\n")[2]


@pytest.mark.slow
def test_an_estimate_that_names_no_stage_is_said_to_be_of_deepspeed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["estimate", "--model", "llama-3.1-8b", "--gpus", "1", "--gpu", "h200"]
    for more, is_said in (([], True), (["--zero", "0"], False), (["--inference"], False)):
        run([*job, *more])
        said = " ".join(capsys.readouterr().out.split())
        assert ("ZeRO stage 0 of DeepSpeed, with fp32 master weights: --zero not given" in said) is is_said
