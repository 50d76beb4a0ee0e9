"""Models small enough to trace in a moment, one of each family."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {"vocab_size": 777, "max_position_embeddings": 4096}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "causal",
        {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 9,
         "num_attention_heads": 4, "num_key_value_heads": 2, **SMALL},
    ),
    "gpt2": (
        "causal",
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 8, "n_head": 4, "vocab_size": 777,
         "n_positions": 4096},
    ),
    "gemma2": (
        "causal",
        {"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 8,
         "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 1024, **SMALL},
    ),
    "gemma3": (
        "causal",
        {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 19,
         "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 1024, **SMALL},
    ),
    "mixtral": (
        "causal",
        {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
         "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
         "num_experts_per_tok": 2, **SMALL},
    ),
    "t5": (
        "seq2seq",
        {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 6, "num_heads": 4,
         "vocab_size": 777, "decoder_start_token_id": 0},
    ),
    "bert": (
        "mlm",
        {"model_type": "bert", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 7,
         "num_attention_heads": 4, **SMALL},
    ),
    "lfm2": (
        "causal",
        {"model_type": "lfm2", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 9,
         "num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 3,
         "layer_types": ["conv", "conv", "full_attention"] * 3, **SMALL},
    ),
}  # fmt: skip
