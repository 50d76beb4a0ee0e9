"""What the accelerate checks share: the committed list of keys, and where Accelerate decides."""

from __future__ import annotations

import contextvars
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from zerokit.linter.deepspeed.tables import nearest_table, tables
from zerokit.rules.types import ACCELERATE_VERSION

_FOLDER = pathlib.Path(__file__).parent
_chosen: contextvars.ContextVar[str] = contextvars.ContextVar("accelerate", default=ACCELERATE_VERSION)
LAUNCH = f"Accelerate {ACCELERATE_VERSION}, commands/launch.py"
CONFIG = f"Accelerate {ACCELERATE_VERSION}, commands/config/config_args.py"
PLUGIN = f"Accelerate {ACCELERATE_VERSION}, utils/dataclasses.py, DeepSpeedPlugin"
PARALLELISM_PREFIX = "parallelism_config_"


def key_list() -> Mapping[str, Any]:
    """The list of the version that is checked for; ``python -m tools.deepspeed_keys`` writes it."""
    return _load(_chosen.get())


def choose(version: str) -> contextvars.Token[str]:
    """Check for another version from here on.

    Raises:
        InputError: there is no list for it.
    """
    return _chosen.set(nearest_table(version, tables(_FOLDER, "accelerate")))


def restore(token: contextvars.Token[str]) -> None:
    """Take a choice back."""
    _chosen.reset(token)


@functools.cache
def _load(version: str) -> Mapping[str, Any]:
    text = (_FOLDER / f"accelerate-{version}.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def fsdp_version(block: object) -> int:
    """Of an ``fsdp_config``: 1 unless it says 2 (commands/launch.py, ``--fsdp_version``)."""
    value = block.get("fsdp_version", block.get("version")) if isinstance(block, dict) else None
    return 2 if str(value) == "2" else 1


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:38]}…{text[-1]}"


def is_file(path: str | pathlib.Path) -> bool:
    """Whether a file is there; false also for what can be no path."""
    try:
        return pathlib.Path(path).is_file()
    except (OSError, ValueError):
        return False
