"""What a training script may call; every function does nothing outside ``zerokit launch``.

>>> import zerokit
>>> with zerokit.phase("eval"):          # peaks inside are reported under "eval"
...     before = zerokit.snapshot("before generating")
...     change = zerokit.compare(before)  # None here: this is no launched rank
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

__all__ = ["compare", "phase", "snapshot"]

_NAME_LENGTH = 80


class RunningProbe(Protocol):
    """What is used here of :class:`zerokit.launcher.rank.probe.Probe`, which this module must not import."""

    @property
    def is_rank(self) -> bool: ...
    def named_phase(self, name: str) -> AbstractContextManager[None]: ...
    def snapshot(self) -> dict[str, Any]: ...
    def event(self, record: dict[str, Any]) -> None: ...


def phase(name: str) -> AbstractContextManager[None]:
    """Measure a part of the script under its own name, beside forward, backward and step.

    Phases may be nested. Outside a launch, and in DataLoader workers, this does nothing.

    Raises:
        TypeError: ``name`` is not text (also outside a launch, so that a script fails early).
        ValueError: ``name`` is empty or longer than 80 characters.
    """
    _check(name)
    probe = _probe()
    return nullcontext() if probe is None else probe.named_phase(name)


def snapshot(label: str = "snapshot") -> dict[str, Any] | None:
    """What this rank uses now, in bytes, noted in the run's report under ``label``.

    Returns:
        ``allocated_bytes``, ``reserved_bytes``, ``device_used_bytes``, ``host_rss_bytes`` and the peaks
        so far (the GPU's are None without one), with ``label``, ``phase`` and ``step``; None outside a
        launch.

    Raises:
        TypeError, ValueError: as for :func:`phase`.
    """
    _check(label)
    probe = _probe()
    if probe is None:
        return None
    record = {"label": label, **probe.snapshot()}
    probe.event({"type": "note", "kind": "snapshot", **record})
    return record


def compare(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """What changed between two snapshots, in bytes (after minus before), noted in the run's report.

    ``after`` is taken now when it is left out. Returns None outside a launch.
    """
    probe = _probe()
    if probe is None or before is None:
        return None
    later = {"label": "now", **probe.snapshot()} if after is None else after
    change: dict[str, Any] = {"before": before.get("label"), "after": later.get("label")}
    for name in before:
        first, second = before[name], later.get(name)
        if name.endswith("_bytes"):
            change[name] = second - first if first is not None and second is not None else None
    probe.event({"type": "note", "kind": "comparison", "changes": change})
    return change


def _probe() -> RunningProbe | None:
    """This process's probe. Looked up, never imported: a script outside a launch pays nothing."""
    module = sys.modules.get("zerokit.launcher.rank.probe")
    probe: RunningProbe | None = getattr(module, "ACTIVE", None)
    return probe if probe is not None and probe.is_rank else None


def _check(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a name must be text, not {type(name).__name__}")
    if not 0 < len(name) <= _NAME_LENGTH:
        raise ValueError(f"a name must have 1 to {_NAME_LENGTH} characters, this has {len(name)}")
