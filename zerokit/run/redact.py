"""Keeps the values of secret environment variables out of what is written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|_KEY$|_PAT$", re.I)
_SHORTEST = 8  # a shorter value is no secret, and would blot out ordinary text
_FLAG = re.compile(r"true|false|[\d.]+|(/[\w.+-]+)+/?", re.I)
"""``TOKENIZERS_PARALLELISM=false`` and ``..._KEY=/a/path`` are no secrets either."""


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret by the usual conventions (HF_TOKEN, WANDB_API_KEY)."""
    return _SECRET_NAME.search(name) is not None


class Redactor:
    """Replaces the values of an environment's secret variables by their names: ``<HF_TOKEN>``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        secrets = {
            value: name
            for name, value in environment.items()
            if len(value) >= _SHORTEST and is_secret_name(name) and not _FLAG.fullmatch(value)
        }
        self._secrets = sorted(secrets.items(), key=lambda pair: -len(pair[0]))

    def text(self, text: str) -> str:
        """``text`` without the secrets."""
        for value, name in self._secrets:
            text = text.replace(value, f"<{name}>")
        return text

    def data(self, data: bytes) -> bytes:
        """Bytes without the secrets; a secret cut in two by the end of a chunk is not seen."""
        for value, name in self._secrets:
            data = data.replace(os.fsencode(value), f"<{name}>".encode())
        return data


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """``text`` without the secrets of this process's environment, or of the one given."""
    return Redactor(os.environ if environment is None else environment).text(text)
