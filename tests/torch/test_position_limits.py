"""Limits of positions, against what transformers' own models take."""

from __future__ import annotations

import pytest

from zerokit.domain.hf_config import RESERVED_ROWS, longest_sequence

_POSITIONS = 16


@pytest.mark.parametrize("model_type", [*RESERVED_ROWS, "llama"])
def test_a_model_takes_its_longest_sequence_and_fails_beyond(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = _tiny(transformers, model_type)
    model = transformers.AutoModel.from_config(config).eval()
    longest = longest_sequence(config.to_dict())
    if longest is None:
        model(input_ids=torch.full((1, _POSITIONS + 1), 5))
        return
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))


def _tiny(transformers, model_type: str):
    """A configuration of one layer of width 16, whatever the family calls its keys."""
    widths = ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim")
    inner = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim")
    layers = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
    heads = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
             "decoder_attention_heads")  # fmt: skip
    positions = ("max_position_embeddings", "n_positions", "max_seq_len")
    wanted = {
        **dict.fromkeys(widths, 16), **dict.fromkeys(inner, 16), **dict.fromkeys(layers, 1),
        **dict.fromkeys(heads, 4), **dict.fromkeys(positions, _POSITIONS),
        "vocab_size": 32, "rotary_dim": 4, "num_key_value_heads": 4, "attention_types": [[["global"], 1]],
        "pad_token_id": 1,
    }  # fmt: skip
    known = transformers.AutoConfig.for_model(model_type).to_dict()
    return transformers.AutoConfig.for_model(
        model_type, **{name: value for name, value in wanted.items() if name in known}
    )
