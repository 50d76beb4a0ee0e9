"""How fast this machine's host issued work, as launches saw it, kept for later predictions. Imports no torch.

One JSON file per host name in the user's cache folder, beside what ``doctor --measure`` keeps:
``$XDG_CACHE_HOME/zerokit/host-speed/HOST.json``. Several readings say more than one: a run's own pace moves
within a host (0.69 to 0.98 of the reference host's seconds, in twelve runs one after the other), so the
newest ones are taken together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from zerokit.files import write_whole
from zerokit.machine import measured
from zerokit.timing.host_speed import HostSpeed

SCHEMA = "zerokit.host_speed/1"
TAKEN_TOGETHER = 5
"""The newest readings that a prediction is made from."""
_KEPT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a host's speed, at a time in UTC (ISO 8601), with a GPU as torch prints it (another GPU
    in the same machine has another driver's path) and the torch that issued the work. ``factor``: the host's
    seconds over the reference host's; ``low``, ``high``: of nine tenths of its rounds; ``source``: what was
    timed, ``probe`` or the steps of a run."""

    device_name: str
    torch_version: str
    factor: float
    low: float
    high: float
    source: str
    measured_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A probe that came to no end: not tried again with the same GPU and torch on the same day."""

    device_name: str
    torch_version: str
    why: str
    measured_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the file holds, oldest first."""

    readings: tuple[Reading, ...] = ()
    failure: Failure | None = None


def path(environment: Mapping[str, str] | None = None, host: str | None = None) -> Path:
    """Where this machine's readings are kept."""
    measured_path = measured.path(environment, host)
    return measured_path.parent.parent / "host-speed" / measured_path.name


def load(at: Path | None = None) -> Kept:
    """What was kept on this machine. A damaged or foreign file holds nothing: readings are cheap."""
    at = at or path()
    try:
        body = json.loads(at.read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError("another schema")
        readings = tuple(Reading(**values) for values in body["readings"])
        for reading in readings:
            texts = (reading.device_name, reading.torch_version, reading.source, reading.measured_at)
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("not a text")
            for number in (reading.factor, reading.low, reading.high):
                if isinstance(number, bool) or not (math.isfinite(number) and number > 0):
                    raise ValueError("not a positive number")
        failure = body["failure"]
        return Kept(readings=readings, failure=Failure(**failure) if failure else None)
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return Kept()


def add(entry: Reading | Failure, at: Path | None = None) -> None:
    """Keep one more. Raises OSError: it cannot be written."""
    at = at or path()
    kept = load(at)
    if isinstance(entry, Reading):
        kept = Kept(readings=(*kept.readings, entry)[-_KEPT:], failure=kept.failure)
    else:
        kept = Kept(readings=kept.readings, failure=entry)
    body = {
        "schema": SCHEMA,
        "readings": [asdict(reading) for reading in kept.readings],
        "failure": asdict(kept.failure) if kept.failure else None,
    }
    at.parent.mkdir(parents=True, exist_ok=True)
    write_whole(at, json.dumps(body, indent=1, allow_nan=False) + "\n", through_links=True)


def together(readings: Sequence[Reading], where: str) -> HostSpeed | None:
    """The newest readings as one speed: their middle, and all that their rounds spread over; ``where`` they
    are kept, for a reader."""
    import statistics  # a plan starts without it

    newest = sorted(readings, key=lambda reading: reading.measured_at)[-TAKEN_TOGETHER:]
    if not newest:
        return None
    count = "one reading" if len(newest) == 1 else f"{len(newest)} readings"
    return HostSpeed(
        factor=statistics.median(reading.factor for reading in newest),
        low=min(reading.low for reading in newest),
        high=max(reading.high for reading in newest),
        source=f"{count}, the last at {newest[-1].measured_at}: {newest[-1].source} ({where})",
    )
