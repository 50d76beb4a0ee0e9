"""The models of the cases: small ones of each kind of layer."""

from __future__ import annotations

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 14,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}


QWEN = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}


GEMMA = {
    "model_type": "gemma3_text",
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 13,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
}


EXPERTS = {
    "model_type": "qwen3_moe",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "moe_intermediate_size": 704,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}


MISTRAL = {
    "model_type": "mistral",
    "vocab_size": 32768,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "sliding_window": None,
    "max_position_embeddings": 8192,
}


BERT = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


VIT = {
    "model_type": "vit",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 224,
    "patch_size": 16,
}
