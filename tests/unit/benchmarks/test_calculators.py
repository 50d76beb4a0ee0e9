"""docs/other-calculators.md: each formula as its source has it, and the page as the command writes it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import calculators

SHAPE = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 100,
}  # fmt: skip


def row(**changes: Any) -> dict[str, Any]:
    return {
        "head": "causal", "hf_config": SHAPE, "seq_len": 10, "micro_batch": 2, "world_size": 1,
        "tensor_parallel": 1, "params": 1000, "trainable_params": 1000, "activation_checkpointing": False,
        "deepspeed_config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}, **changes,
    }  # fmt: skip


def test_each_formula_is_the_sum_of_its_source() -> None:
    # embeddings, positions, norms, attention with half as many keys and values, three linear layers
    params = 1600 + 80 + (192 + 16) + 2 * 1.5 * 3 * 64 + 3 * 3 * 8 * 32
    tokens = 10 * 2 * 8 * 3
    assert calculators.transformer_math(row()) == 16 * params + tokens * (34 + 5 * 2 * 10 / 8)
    divided = row(
        world_size=4, activation_checkpointing=True,
        deepspeed_config={"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
    )  # fmt: skip
    assert calculators.transformer_math(divided) == 16 * params / 4 + 2 * 1.5e9 + tokens * 34
    assert calculators.vram_calculator(row()) == 18_000 + 2 * 4 * 2 * 10 * 100
    # weights, a cache of keys and values, one layer in fp32, 12 bytes of each trained parameter
    assert calculators.system_requirements(row(trainable_params=10)) == (
        2000 + 2 * 2 * 10 * 3 * 8 * 2 + 2 * 10 * 8 * (34 + 12.5) * 4 + 120
    )
    own = 2 * 100 * 8 + 3 * (4 * 64 + 3 * 32 * 8)
    layer = 16 * 80 + 8 * 200 + 4 * 80 + 12 * 320 + 80 + 12 * 80
    assert calculators.gpu_poor(row()) == 8 * own + layer * 3 * 2
    assert calculators.gpu_poor(row(trainable_params=10, activation_checkpointing=True)) == pytest.approx(
        2 * own + 3 * 8 * 8 * 2 * 4 * 3 * 2 + 0.15 * layer * 3 * 2
    )
    assert calculators.hf_mem(row()) == 2000


@pytest.mark.parametrize(
    ("zero", "gpus", "shape", "expected"),
    [
        ({"stage": 2}, 4, {}, 2 * 1000 + 18 * 1000 / 4),
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, 4, {}, 2 * 1000),
        ({"stage": 3}, 4, {}, 4 * 100 * 8 + 18 * 1000 / 4),  # the embedding is gathered in fp32
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, 4, {}, 4 * 100 * 8 + 2 * 1000 / 4),
        (
            {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
            4,
            {},
            3200,
        ),
        ({"stage": 3}, 1, {"num_local_experts": 4}, 4 * 4 * 3 * 32 * 8 + 18 * 1000),
        ({"stage": 1}, 4, {}, None),
    ],
)
def test_deepspeed_estimates_stages_2_and_3(
    zero: dict[str, Any], gpus: int, shape: dict[str, Any], expected: float | None
) -> None:
    run = row(world_size=gpus, hf_config={**SHAPE, **shape}, deepspeed_config={"zero_optimization": zero})
    assert calculators.deepspeed(run) == expected
    assert calculators.deepspeed({**run, "trainable_params": 10}) is None


def test_none_is_asked_what_it_has_no_inputs_for() -> None:
    adapters, two = row(trainable_params=10), row(world_size=2)
    offloaded = row(deepspeed_config={"bf16": {"enabled": True}, "zero_optimization": {
        "stage": 2, "offload_optimizer": {"device": "cpu"}}})  # fmt: skip
    mixture = row(hf_config={**SHAPE, "num_local_experts": 8})
    assert calculators.transformer_math(adapters) is calculators.transformer_math(offloaded) is None
    assert calculators.vram_calculator(adapters) is calculators.vram_calculator(two) is None
    assert (
        calculators.gpu_poor(two)
        is calculators.gpu_poor(mixture)
        is calculators.gpu_poor(row(head="mlm"))
        is None
    )
    assert calculators.hf_mem(two) is None


def test_the_page_and_its_csv_are_what_the_command_writes() -> None:
    kept = calculators._read(calculators.ANSWERS)
    assert calculators.answers() == kept
    assert calculators.page(kept) == calculators.PAGE.read_text(encoding="utf-8")
    assert sum(one["llm-analysis"] != "-" for one in kept) > 100
