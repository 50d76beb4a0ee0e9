"""Look-ups in a Hugging Face configuration, under the names that families use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError

_MOST = 10**9  # far beyond any model


class HfConfig:
    """A configuration's values; errors name the file."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def count(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is there, a whole number of at least 1. Raises InputError: it is
        something else, or none is there and no default was given."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{self.name}: {key} is {value!r}; expected a whole number of at least 1")
            if value > _MOST:
                raise InputError(f"{self.name}: {key} is {value}; expected at most {_MOST:,}")
            return value
        if default is None:
            raise InputError(f"{self.name}: none of {', '.join(keys)} is in the configuration")
        return default

    def flag(self, key: str, default: bool) -> bool:
        """Whether ``key`` is true."""
        return bool(self.values.get(key, default))


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
