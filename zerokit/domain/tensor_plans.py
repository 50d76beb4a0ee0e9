"""Models that Transformers 5.23.0 divides by a tensor parallel plan (``tools/tensor_plans.py`` writes it)."""

MODEL_TYPES = frozenset(
    {
        "cohere",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "granite",
        "llama",
        "ministral3",
        "mistral",
        "qwen2",
        "qwen3",
        "seed_oss",
        "smollm3",
        "starcoder2",
    }
)
"""Of configurations (``model_type``)."""
