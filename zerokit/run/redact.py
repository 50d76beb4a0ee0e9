"""Keeps the values of secret environment variables out of what is written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|_KEY$|_PAT$", re.I)
_SHORTEST = 8  # a shorter value is no secret, and would blot out ordinary text


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret by the usual conventions (HF_TOKEN, WANDB_API_KEY)."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """``text`` with the values of secret variables replaced by ``<HF_TOKEN>`` and the like."""
    variables = os.environ if environment is None else environment
    secrets = [(value, name) for name, value in variables.items()
               if len(value) >= _SHORTEST and is_secret_name(name)]  # fmt: skip
    for value, name in sorted(secrets, key=lambda pair: -len(pair[0])):
        text = text.replace(value, f"<{name}>")
    return text
