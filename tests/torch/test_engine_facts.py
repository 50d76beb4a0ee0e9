"""What the probe reads of peft's adapters, on peft's own models."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.instrument.engine_facts import adapters

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


def model(**config: Any) -> Any:
    tiny = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64
    )
    base = transformers.LlamaForCausalLM(tiny)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **config)) if config else base


def test_lora_is_read_with_its_rank_and_modules() -> None:
    assert adapters(model(r=4, target_modules=["v_proj", "q_proj"])) == {
        "rank": 4,
        "targets": "q_proj,v_proj",
    }
    assert adapters(model(r=8, target_modules="all-linear")) == {"rank": 8, "targets": "all-linear"}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"r": 4, "target_modules": ["q_proj"], "use_dora": True},
        {"r": 4, "target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 8}},
    ],
    ids=["all weights", "a head that is trained too", "DoRA", "two ranks"],
)
def test_what_is_not_lora_alone_is_not_taken_for_it(config: dict[str, Any]) -> None:
    assert adapters(model(**config)) is None
