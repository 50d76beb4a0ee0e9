"""Dropout on adapters as it is derived from a trace without it, compared with a trace of peft's own."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from zerokit.domain.profile import ModelProfile, Variant
from zerokit.memory.adapter_dropout import with_dropout
from zerokit.trace.profile import profile_from_config

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 512,
}  # fmt: skip


def traced(config: dict[str, Any], variant: Variant) -> ModelProfile:
    return profile_from_config(dict(config), [variant], name="tiny")


@pytest.mark.parametrize(
    ("config", "variant"),
    [
        (LLAMA, Variant(lora_rank=4)),
        (LLAMA, Variant(lora_rank=4, checkpointing="full")),
        (LLAMA, Variant(lora_rank=4, checkpointing="full", zero3_linear=True)),
    ],
    ids=["llama", "llama, checkpointed", "llama, checkpointed under ZeRO-3"],
)
def test_every_instant_is_that_of_a_trace_with_dropout(
    config: dict[str, Any], variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peft

    profile = traced(config, variant)
    monkeypatch.setattr(peft, "LoraConfig", functools.partial(peft.LoraConfig, lora_dropout=0.05))
    wanted = traced(config, variant).traces[variant.key][0]
    without = profile.traces[variant.key][0]
    assert wanted.timeline(4, 1024).forward_peak > 0
    derived, real = with_dropout(profile, variant, without).timeline(4, 1024), wanted.timeline(4, 1024)
    assert derived.forward.levels == real.forward.levels
    assert derived.backward.levels == real.backward.levels
    assert max(derived.forward.peaks) == max(real.forward.peaks)
    assert max(derived.backward.peaks) == max(real.backward.peaks)
    assert max(derived.gradients.peaks) == max(real.gradients.peaks)
    # the buckets of ZeRO-1 and 2 come with the first gradient of all
    assert derived.gradients.levels[0] == real.gradients.levels[0]
