"""Base weights in 8 bits under adapters, beside bitsandbytes' own layer on the CPU.

`tests/oracle/test_replay_and_rehearsal.py` (`lora-int8`) sets whole training steps beside each other.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
bitsandbytes = pytest.importorskip("bitsandbytes")

from zerokit.domain.profile import Variant  # noqa: E402
from zerokit.trace.building.build import build  # noqa: E402

TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}  # fmt: skip


def test_a_layer_takes_the_bytes_of_bitsandbytes_own() -> None:
    built = build(TINY, Variant(lora_rank=4, quantization="int8"), head="causal")
    said = {p.name: p.stored_bytes for p in built.parameters if p.stored_bytes}
    assert len(said) == 2 * 7  # every linear layer but the head
    for (rows, columns), name in (((192, 64), "gate_proj"), ((64, 192), "down_proj"), ((32, 64), "k_proj")):
        layer = bitsandbytes.nn.Linear8bitLt(columns, rows, bias=False, has_fp16_weights=False)
        layer.to("cpu")  # quantises
        held = (layer.weight.data, layer.weight.SCB)
        assert held[0].dtype == torch.int8
        of_layer = {size for key, size in said.items() if f".{name}." in key}
        assert of_layer == {sum(t.numel() * t.element_size() for t in held)}


def test_checkpointing_does_not_let_go_of_the_inputs_of_its_layers() -> None:
    """bitsandbytes holds them by itself (autograd/_functions.py, ``ctx.tensors``)."""
    from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState

    saved: list[object] = []
    state = MatmulLtState()
    state.has_fp16_weights, state.threshold = False, 6.0
    weight = torch.randn(8, 16)
    state.CB, state.SCB, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
    tensor = torch.randn(4, 16, dtype=torch.float16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = MatMul8bitLt.apply(tensor, state.CB, None, None, state)
    assert not saved
    assert any(t is not None and t.data_ptr() == tensor.data_ptr() for t in out.grad_fn.tensors)
