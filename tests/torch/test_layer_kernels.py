"""Kernels of a layer, counted as torch dispatches them."""

from __future__ import annotations

import pytest

from zerokit.domain.families import from_config

_NO_KERNEL = {
    "view", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "empty", "expand", "permute",
    "t", "transpose", "slice", "select", "split", "split_with_sizes", "squeeze", "unsqueeze",
}  # fmt: skip


@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "olmo2", "gemma3_text", "opt", "gpt_neox", "phi", "starcoder2"]
)
def test_kernels_of_a_layer_are_what_torch_dispatches(family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils._python_dispatch import TorchDispatchMode

    small = {"hidden_size": 256, "intermediate_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4,
             "num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 128, "head_dim": 32,
             "ffn_dim": 128, "word_embed_proj_dim": 256, "dropout": 0.0, "pad_token_id": 0}  # fmt: skip
    config = transformers.AutoConfig.for_model(family, **small)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    counted = []

    class Count(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            counted.append(function._schema.name.split("::")[1])
            return function(*args, **(kwargs or {}))

    (layers,) = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 2)
    before: list[int] = []
    layers[1].register_forward_pre_hook(lambda *_: before.append(len(counted)))
    layers[1].register_forward_hook(lambda *_: before.append(len(counted)))
    with Count():
        model(input_ids=torch.zeros(1, 64, dtype=torch.long), use_cache=False)
    launched = sum(name not in _NO_KERNEL for name in counted[before[0] : before[1]])
    assert launched == pytest.approx(from_config(config.to_dict()).layer_kernels, abs=2)
