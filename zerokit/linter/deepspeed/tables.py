"""The committed tables of keys, one for each DeepSpeed version that people run."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION

_FOLDER = pathlib.Path(__file__).parent


def key_list() -> Mapping[str, Any]:
    """The table of the version that is checked for (see :mod:`tools.deepspeed_keys`)."""
    return _load(DEEPSPEED_VERSION)


@functools.cache
def _load(version: str) -> Mapping[str, Any]:
    text = (_FOLDER / f"deepspeed-{version}.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded
