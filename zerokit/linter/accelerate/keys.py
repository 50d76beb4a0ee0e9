"""What the accelerate checks share: the committed list of keys, and where Accelerate decides."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

ACCELERATE_VERSION = "1.15.0"
_FILE = pathlib.Path(__file__).parent / f"accelerate-{ACCELERATE_VERSION}.json"
LAUNCH = f"Accelerate {ACCELERATE_VERSION}, commands/launch.py"
CONFIG = f"Accelerate {ACCELERATE_VERSION}, commands/config/config_args.py"
PLUGIN = f"Accelerate {ACCELERATE_VERSION}, utils/dataclasses.py, DeepSpeedPlugin"
PARALLELISM_PREFIX = "parallelism_config_"


@functools.cache
def key_list() -> Mapping[str, Any]:
    """The committed list (see :mod:`tools.deepspeed_keys`)."""
    loaded: Mapping[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def is_file(path: str | pathlib.Path) -> bool:
    """Whether a file is there; false also for what can be no path."""
    try:
        return pathlib.Path(path).is_file()
    except (OSError, ValueError):
        return False
