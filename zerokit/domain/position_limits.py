"""How long a sequence a model's positions allow, where they do.

Rotary models take longer sequences than their configuration names; a table of positions has no row for them,
and the forward pass raises. Source: each model of :data:`RESERVED_ROWS` at its limit and one token beyond it
(transformers 5.23; tests/torch/test_position_limits.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Keys of a configuration that name its positions."""

RESERVED_ROWS = {
    **dict.fromkeys(
        ("gpt2", "openai-gpt", "opt", "gpt_neo", "gpt_bigcode", "gptj", "codegen", "mpt", "biogpt",
         "bert", "distilbert", "electra", "albert", "deberta-v2", "bart", "mbart"), 0
    ),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), 2),
}  # fmt: skip
"""``model_type`` → rows of its table that no token has: RoBERTa counts from the padding token on."""


def named_positions(config: Mapping[str, Any]) -> int | None:
    """The positions that a configuration, or its text part, names; ``None``: it names none."""
    parts = [config, *(part for part in (config.get("text_config"),) if isinstance(part, Mapping))]
    return next((part[key] for part in parts for key in LIMITS if isinstance(part.get(key), int)), None)


def longest_sequence(config: Mapping[str, Any]) -> int | None:
    """The most tokens that the model can take; ``None``: its positions set no limit, or none is known."""
    reserved, positions = RESERVED_ROWS.get(str(config.get("model_type"))), named_positions(config)
    return None if reserved is None or positions is None else positions - reserved
