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


@pytest.mark.parametrize("family", ["qwen3", "olmo2", "glm4", "qwen2"])
def test_element_wise_traffic_of_a_layer_beside_llamas(family: str) -> None:
    """Bytes that torch's dispatcher sees read and written, products and attention left out, over a Llama's of
    the same sizes: wide queries, and norms beside the usual two, cost what the time model says."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils._python_dispatch import TorchDispatchMode

    from zerokit.timing.constants import HUGGING_FACE as C

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
             "num_hidden_layers": 2, "vocab_size": 100, "head_dim": 64, "pad_token_id": 0}  # fmt: skip
    tokens, counted = 64, {"bytes": 0}
    left_out = {*_NO_KERNEL, "mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu"}

    def moved(values: object) -> int:
        if isinstance(values, torch.Tensor):
            steps = zip(values.shape, values.stride(), strict=True)
            return int(values.element_size() * torch.Size([size for size, step in steps if step]).numel())
        return sum(map(moved, values)) if isinstance(values, list | tuple) else 0

    class Count(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            if function._schema.name.split("::")[1] not in left_out:
                counted["bytes"] += moved(args) + moved(out)
            return out

    def of(name: str) -> tuple[float, float]:
        config = transformers.AutoConfig.for_model(name, **sizes)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        (layers,) = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 2)
        ends: list[int] = []
        layers[1].register_forward_pre_hook(lambda *_: ends.append(counted["bytes"]))
        layers[1].register_forward_hook(lambda *_: ends.append(counted["bytes"]))
        with Count():
            model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
        (stack,) = from_config(config.to_dict()).stacks
        said = C.hidden_bytes * stack.hidden + C.rotary_bytes * stack.rotated
        return ends[1] - ends[0], said + C.norm_bytes * stack.more_normed + C.ffn_bytes * stack.ffn

    (seen, said), (llama_seen, llama_said) = of(family), of("llama")
    assert said / llama_said == pytest.approx(seen / llama_seen, rel=0.15)
