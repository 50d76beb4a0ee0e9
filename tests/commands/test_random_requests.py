"""Random requests: more hardware never gives a slower answer, no alternative is faster than the choice."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import zerokit
from benchmarks.random_requests import random_request, step_seconds, violations
from zerokit.emit import plan_file


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 300))]
)
def test_more_hardware_is_never_slower_and_the_choice_is_the_fastest(seed: int) -> None:
    request = random_request(Random(seed))
    assert not violations(request), request


def test_gpus_that_only_wait_for_links_are_left_idle(tmp_path: Path) -> None:
    """Gradients of 30 B parameters for 4 sequences a GPU: longer between two nodes than the work."""
    asked: dict[str, Any] = {"model": "opt-30b", "gpu": "b300", "gpus": 16, "global_batch": 64,
                             "network": "50GB"}  # fmt: skip
    plan, whole = zerokit.plan(**asked, out=tmp_path), zerokit.plan(**asked, all_gpus=True)
    strategy = plan.chosen.strategy
    assert (strategy.world_size, strategy.global_batch, plan.cluster.nodes) == (8, 64, 1)
    assert len(plan.chosen.estimate.per_rank) == 8 and step_seconds(plan) < step_seconds(whole)
    assert any("8 of the 16 GPUs are used and 8 left idle" in note for note in plan.assumptions)
    written = plan_file.read(tmp_path)
    assert (written.world_size, written.nodes) == (8, 1)
    assert "2 nodes for 16 GPUs, 8 on each: nodes not given" in plan.assumptions  # what was asked for
    chosen = zerokit.plan(**{name: value for name, value in asked.items() if name != "global_batch"})
    assert any(" for each of 16 GPUs, the power of two" in note for note in chosen.assumptions)
    assert whole.chosen.strategy.world_size == 16
    line = next(line for line in whole.to_dict()["faster_with"] if "8 of the 16 GPUs" in line)
    assert "--gpus 8 --global-batch 64" in line
    alone = zerokit.plan(**asked | {"gpus": 8})
    assert step_seconds(alone) == pytest.approx(step_seconds(plan))


def test_gpus_that_only_launch_kernels_are_left_idle() -> None:
    """Four sequences of 128 tokens: every GPU launches the same kernels, for one of them or for four."""
    plan = zerokit.plan(model="gpt2", gpu="rtx-4090", gpus=4, global_batch=4, seq_len=128)
    assert plan.chosen.strategy.world_size == 1 and plan.chosen.micro_batch == 4
    assert any("1 of the 4 GPUs" in note for note in plan.assumptions)


def test_frozen_weights_have_no_gradients_to_compute() -> None:
    """A token of Llama 3.2 1B meets 1.24e9 weights, four operations each; RTX 4090: 165 TFLOP/s."""
    plan = zerokit.plan(
        model="llama-3.2-1b", gpu="rtx-4090", gpus=1, seq_len=128, global_batch=1, method="lora"
    )
    (said,) = (line for line in plan.to_dict()["advice"] if "of their peak" in line)
    share = float(said.split("reach ")[1].split("%")[0]) / 100
    assert share == pytest.approx(4 * 1.236e9 * 128 / step_seconds(plan) / 165e12, abs=0.001)


def test_gpus_that_wait_for_the_network_are_told_of_with_what_helps() -> None:
    """Gradients of 13 B parameters for one sequence a GPU: hardly any work between two reductions."""
    plan = zerokit.plan(
        model="llama-2-13b",
        gpu="gb200",
        gpus=128,
        seq_len=512,
        global_batch=128,
        all_gpus=True,
        network="50GB",
        zero=1,
    )
    advice, faster = plan.to_dict()["advice"], plan.to_dict()["faster_with"]
    said = next(line for line in advice if "of their peak" in line)
    share = float(said.split("reach ")[1].split("%")[0]) / 100
    # of Llama-2-13B 12.85 B weights are multiplied, six times a token; GB200: 2,500 TFLOP/s dense
    expected = 6 * 12.85e9 * 128 * 512 / step_seconds(plan) / 128 / 2.5e15
    assert share == pytest.approx(expected, abs=0.001) and "--global-batch" in said
    assert any("of the 128 GPUs" in line and "--gpus" in line for line in faster)
