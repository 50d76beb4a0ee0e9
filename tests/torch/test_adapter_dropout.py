"""Dropout on adapters as it is derived from a trace without it, compared with a trace of peft's own."""

from __future__ import annotations

import functools

import pytest

from zerokit.domain.profile import Variant
from zerokit.memory.adapter_dropout import with_dropout
from zerokit.trace.profile import profile_from_config

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 512,
}  # fmt: skip


PLAIN, FULL = Variant(lora_rank=4), Variant(lora_rank=4, checkpointing="full")
SHARDED = Variant(lora_rank=4, checkpointing="full", zero3_linear=True)


@pytest.mark.slow
@pytest.mark.parametrize("variants", [[SHARDED], [PLAIN, FULL]], ids=["zero3", "below"])
def test_every_instant_is_that_of_a_trace_with_dropout(
    variants: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    import peft

    profile = profile_from_config(dict(LLAMA), variants, name="tiny")
    monkeypatch.setattr(peft, "LoraConfig", functools.partial(peft.LoraConfig, lora_dropout=0.05))
    with_peft = profile_from_config(dict(LLAMA), variants, name="tiny")
    for variant in variants:
        wanted, without = with_peft.traces[variant.key][0], profile.traces[variant.key][0]
        assert wanted.timeline(4, 1024).forward_peak > 0
        derived, real = with_dropout(profile, variant, without).timeline(4, 1024), wanted.timeline(4, 1024)
        assert derived.forward.levels == real.forward.levels, variant
        assert derived.backward.levels == real.backward.levels, variant
        assert max(derived.forward.peaks) == max(real.forward.peaks), variant
        assert max(derived.backward.peaks) == max(real.backward.peaks), variant
        assert max(derived.gradients.peaks) == max(real.gradients.peaks), variant
        # the buckets of ZeRO-1 and 2 come with the first gradient of all
        assert derived.gradients.levels[0] == real.gradients.levels[0], variant
