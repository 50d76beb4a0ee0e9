"""Settings drawn at random: what no list of settings thought of.

./launch.sh test -m slow tests/oracle/test_random_settings.py
ORACLE_SEED=7 ORACLE_CASES=100 ./launch.sh test -m slow tests/oracle/test_random_settings.py
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.oracle import allocations as fixed
from tests.oracle.expected import GPT2, LLAMA, case
from tests.support.packages import needs

needs("deepspeed")
needs("peft")

SEED, CASES = int(os.environ.get("ORACLE_SEED", "1")), int(os.environ.get("ORACLE_CASES", "40"))


def _zero(draw: random.Random) -> dict[str, Any]:
    """A ``zero_optimization`` section."""
    stage = draw.choice((0, 1, 1, 2, 2, 2, 3, 3, 3))
    zero: dict[str, Any] = {"stage": stage}
    if stage == 0:
        return zero
    zero |= {
        "reduce_bucket_size": draw.choice((5_000, 40_000, 400_000)),
        "overlap_comm": draw.random() < 0.5,
        "contiguous_gradients": draw.random() < 0.8,
    }
    if stage < 3:
        zero |= {
            "reduce_scatter": draw.random() < 0.7,
            "round_robin_gradients": stage == 2 and draw.random() < 0.3,
        }
        if zero["contiguous_gradients"] and draw.random() < 0.4:
            zero |= fixed.OPTIMIZER
        return zero
    zero |= {
        "stage3_param_persistence_threshold": draw.choice((0, 100, 600, 5_000)),
        "stage3_prefetch_bucket_size": draw.choice((0, 20_000, 200_000)),
        "stage3_max_live_parameters": draw.choice((30_000, 10**9)),
        "stage3_max_reuse_distance": draw.choice((0, 30_000, 10**9)),
        "sub_group_size": draw.choice((50_000, 10**9)),
    }
    return zero | draw.choice(({}, {}, fixed.OPTIMIZER, fixed.PARAMETERS))


def _precision(draw: random.Random, zero: dict[str, Any]) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [{}, {}, {"fp32": True}, fixed.FP16, fixed.FP32_COMMUNICATION]
    if "offload_optimizer" not in zero:
        kinds.append(fixed.FP32_ACCUMULATION)
        if zero["stage"] < 3:  # there torch_autocast is not replayed (``traced.covers``)
            kinds.append({"fp32": True} | fixed.AUTOCAST)
    return draw.choice(kinds)


def drawn(number: int) -> dict[str, Any]:
    """The case of a number."""
    draw = random.Random(f"{SEED}.{number}")
    zero = _zero(draw)
    model = draw.choice((LLAMA, fixed.TIED, GPT2, fixed.PHI))
    lora = None if model is GPT2 else draw.choice((None, None, fixed.LORA, fixed.ALL_LINEAR))
    if draw.random() < 0.5:
        model = model | {"vocab_size": 50}  # then a layer peaks, and not the loss
    return case(
        f"{SEED}.{number}",
        zero,
        accumulation=draw.choice((1, 1, 2, 3)),
        lora=lora,
        checkpointing=draw.choice(("none", "full", "reentrant")),
        model=model,
        micro_batch=draw.choice((1, 2)),
        seq_len=draw.choice((64, 96)),  # a trace keeps the instants that are the largest from 64 on
        **_precision(draw, zero),
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return fixed.run_ranks([drawn(number) for number in range(CASES)], tmp_path_factory.mktemp("drawn"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(CASES))
def test_drawn_settings(number: int, answers: dict[str, list[dict[str, Any]]]) -> None:
    run = drawn(number)
    observed = answers[run["name"]]
    refused = [one["error"].strip().splitlines()[-1] for one in observed if "error" in one]
    if refused:
        pytest.skip(f"DeepSpeed refuses it: {refused[0]}")
    off = [line for rank, one in enumerate(observed) for line in fixed.compare(run, rank, one)]
    assert not off, f"{run}\n" + "\n".join(off)
