"""Random requests: more hardware never gives a slower answer, no alternative is faster than the choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import zerokit
from zerokit.catalog import gpus, models
from zerokit.emit import plan_file
from zerokit.errors import InputError, NothingFits
from zerokit.planner.options import normalized
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.request import resolve
from zerokit.search.plan import make_plan

MODELS = [model.name for model in models.index() if model.head != "image-text"]
GPUS = list(gpus.names())
SMALL_STEPS = 1 + 1e-6  # a figure that is the same but for the order of sums


def random_request(random: Random) -> dict[str, Any]:
    count = random.choice([1, 2, 4, 8, 16, 32, 64, 128, 256, 1024])
    choices: dict[str, tuple[float, list[Any]]] = {
        "seq_len": (0.6, [512, 1024, 2048, 4096, 8192, 32768, 131072]),
        "method": (0.3, ["lora", "qlora"]),
        "tp": (0.3, ["auto"]),
        "sp": (0.2, ["auto"]),
        "network": (0.3, ["12.5GB", "25GB", "100GB", "400GB"]),
        "pipeline_module": (0.2, [True]),
        "host_ram": (0.2, ["256GiB", "1TiB", "2TiB"]),
    }
    request = {"model": random.choice(MODELS), "gpu": random.choice(GPUS), "gpus": count}
    request["global_batch"] = count * random.choice([2, 4, 8, 16])
    return request | {k: random.choice(v) for k, (share, v) in choices.items() if random.random() < share}


def planned(request: dict[str, Any]) -> PlanResult | None:
    """The plan; none where nothing fits, or where the request cannot be."""
    try:
        return zerokit.plan(**request)
    except (NothingFits, InputError) as error:
        assert error.exit_code in (2, 3)
        return None


def seconds(plan: PlanResult) -> float:
    return float(plan.to_dict()["chosen"]["estimate"]["step_seconds"])


def check(request: dict[str, Any]) -> None:
    plan = planned(request)
    if plan is None:
        return
    body = plan.to_dict()
    for other in body["alternatives"]:
        assert other["estimate"]["step_seconds"] * SMALL_STEPS >= seconds(plan), request
    faster_link = planned(request | {"network": "800GB"})
    assert faster_link is not None and seconds(faster_link) <= seconds(plan) * SMALL_STEPS, request
    asked = resolve(normalized(request)).request
    gpu = asked.cluster.gpu.with_total_memory(round(1.25 * asked.cluster.gpu.driver_vram_bytes))
    roomier = make_plan(replace(asked, cluster=replace(asked.cluster, gpu=gpu)))
    assert roomier.chosen.time.step_seconds <= seconds(plan) * SMALL_STEPS, request
    more = planned(request | {"gpus": 2 * request["gpus"]})
    assert more is not None and seconds(more) <= seconds(plan) * SMALL_STEPS, request


@pytest.mark.parametrize("seed", range(16))
def test_more_hardware_is_never_slower_and_the_choice_is_the_fastest(seed: int) -> None:
    check(random_request(Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 300))
def test_more_hardware_is_never_slower_in_300_requests(seed: int) -> None:
    check(random_request(Random(seed)))


def test_gpus_that_only_wait_for_links_are_left_idle(tmp_path: Path) -> None:
    """Gradients of 30 B parameters for 4 sequences a GPU: longer between two nodes than the work."""
    asked: dict[str, Any] = {"model": "opt-30b", "gpu": "b300", "gpus": 16, "global_batch": 64,
                             "network": "50GB"}  # fmt: skip
    plan, whole = zerokit.plan(**asked, out=tmp_path), zerokit.plan(**asked, all_gpus=True)
    strategy = plan.chosen.strategy
    assert (strategy.world_size, strategy.global_batch, plan.cluster.nodes) == (8, 64, 1)
    assert len(plan.chosen.estimate.per_rank) == 8 and seconds(plan) < seconds(whole)
    assert any("8 of the 16 GPUs are used and 8 left idle" in note for note in plan.assumptions)
    written = plan_file.read(tmp_path)
    assert (written.world_size, written.nodes) == (8, 1)
    assert whole.chosen.strategy.world_size == 16
    line = next(line for line in whole.to_dict()["faster_with"] if "8 of the 16 GPUs" in line)
    assert "--gpus 8 --global-batch 64" in line
    alone = zerokit.plan(**asked | {"gpus": 8})
    assert seconds(alone) == pytest.approx(seconds(plan))


def test_gpus_that_only_launch_kernels_are_left_idle() -> None:
    """Four sequences of 128 tokens: every GPU launches the same kernels, for one of them or for four."""
    plan = zerokit.plan(model="gpt2", gpu="rtx-4090", gpus=4, global_batch=4, seq_len=128)
    assert plan.chosen.strategy.world_size == 1 and plan.chosen.micro_batch == 4
    assert any("1 of the 4 GPUs" in note for note in plan.assumptions)


def test_gpus_that_wait_for_the_network_are_told_of_with_what_helps() -> None:
    """Gradients of 13 B parameters for one sequence a GPU: hardly any work between two reductions."""
    plan = zerokit.plan(
        model="llama-2-13b", gpu="gb200", gpus=128, seq_len=512, global_batch=128, all_gpus=True
    )
    advice, faster = plan.to_dict()["advice"], plan.to_dict()["faster_with"]
    said = next(line for line in advice if "of their peak" in line)
    share = float(said.split("reach ")[1].split("%")[0]) / 100
    # of Llama-2-13B 12.85 B weights are multiplied, six times a token; GB200: 2,500 TFLOP/s dense
    expected = 6 * 12.85e9 * 128 * 512 / seconds(plan) / 128 / 2.5e15
    assert share == pytest.approx(expected, abs=0.001) and "--global-batch" in said
    assert any("of the 128 GPUs" in line and "--gpus" in line for line in faster)
