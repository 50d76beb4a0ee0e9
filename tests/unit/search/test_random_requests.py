"""Random requests: more hardware never gives a slower answer, no alternative is faster than the choice."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

import zerokit
from zerokit.catalog import gpus, models
from zerokit.errors import InputError, NothingFits
from zerokit.planner.options import normalized
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.request import resolve
from zerokit.search.plan import make_plan

MODELS = [model.name for model in models.index()]
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
    twice = {"gpus": 2 * request["gpus"]}
    more = planned(request | twice)
    assert more is not None, request
    if seconds(more) > seconds(plan) * SMALL_STEPS:  # links set the pace: then fewer GPUs are named
        assert any(f"of the {twice['gpus']} GPUs" in line for line in more.to_dict()["faster_with"]), request


@pytest.mark.parametrize("seed", range(8))
def test_more_hardware_is_never_slower_and_the_choice_is_the_fastest(seed: int) -> None:
    check(random_request(Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 300))
def test_more_hardware_is_never_slower_in_300_requests(seed: int) -> None:
    check(random_request(Random(seed)))


def test_gpus_that_wait_for_the_network_are_told_of_with_what_helps() -> None:
    """Gradients of 13 B parameters for one sequence a GPU: hardly any work between two reductions."""
    plan = zerokit.plan(model="llama-2-13b", gpu="gb200", gpus=128, seq_len=512, global_batch=128)
    advice, faster = plan.to_dict()["advice"], plan.to_dict()["faster_with"]
    said = next(line for line in advice if "of their peak" in line)
    share = float(said.split("reach ")[1].split("%")[0]) / 100
    # of Llama-2-13B 12.85 B weights are multiplied, six times a token; GB200: 2,500 TFLOP/s dense
    expected = 6 * 12.85e9 * 128 * 512 / seconds(plan) / 128 / 2.5e15
    assert share == pytest.approx(expected, abs=0.001) and "--global-batch" in said
    assert any("of the 128 GPUs" in line and "--gpus" in line for line in faster)
