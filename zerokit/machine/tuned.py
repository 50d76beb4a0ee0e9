"""Step times that ``zerokit tune`` measured on this machine, kept for later plans. Imports no torch.

One JSON file per host name in the user's cache folder, beside what ``doctor --measure`` keeps:
``$XDG_CACHE_HOME/zerokit/tuned/HOST.json``. It is read strictly: a file with anything unknown, missing
or impossible in it is not used at all, and said.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from zerokit import __version__
from zerokit.files import write_whole
from zerokit.machine import measured
from zerokit.notes import Note
from zerokit.timing.calibration import Observation

SCHEMA = "zerokit.tuned/1"
_MOST = 4000
_TEXTS = frozenset({"gpu", "method", "attention", "offload_optimizer", "offload_param", "checkpointing",
                    "precision", "measured_at"})  # fmt: skip
_SECONDS = frozenset({"predicted_step_seconds", "measured_step_seconds"})
_NAMES = frozenset(field.name for field in fields(Observation))


def path(environment: Mapping[str, str] | None = None, host: str | None = None) -> Path:
    """Where this machine's tuned step times are kept."""
    measured_path = measured.path(environment, host)
    return measured_path.parent.parent / "tuned" / measured_path.name


def load(at: Path | None = None) -> tuple[tuple[Observation, ...], Note | None]:
    """What was tuned on this machine, and a warning when a file is there that cannot be used."""
    at = at or path()
    try:
        body = json.loads(at.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError:
        return (), None
    except (OSError, ValueError, RecursionError) as error:
        return (), _warning(at, f"cannot be read ({error.__class__.__name__})")
    try:
        return from_dict(body), None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return (), _warning(at, f"is not this version's file of tuned step times ({error})")


def _warning(at: Path, why: str) -> Note:
    text = f"{at} {why}, and is not used; tune again, or delete it"
    return Note("tuned-unusable", text, "hardware", "warning", short=f"{at} {why}")


def from_dict(body: Any) -> tuple[Observation, ...]:
    """Read back what :func:`save` wrote. Raises ValueError, TypeError, KeyError: something is missing,
    unknown or impossible."""
    if not isinstance(body, dict) or body.keys() != {"schema", "zerokit", "observations"}:
        raise ValueError("expected schema, zerokit and observations")
    if body["schema"] != SCHEMA:
        raise ValueError(f"schema {str(body['schema'])[:40]!r}, not {SCHEMA}")
    if not isinstance(body["zerokit"], str) or not isinstance(body["observations"], list):
        raise TypeError("observations must be a list")
    if body["zerokit"] != __version__:
        # its ratios are to the predictions of another time model
        raise ValueError(f"written by zerokit {body['zerokit'][:40]}")
    return tuple(_observation(number, values) for number, values in enumerate(body["observations"]))


def _observation(number: int, values: Any) -> Observation:
    if not isinstance(values, dict) or values.keys() != _NAMES:
        raise ValueError(f"observations[{number}] has unexpected fields")
    for name, value in values.items():
        if name == "layer_factor" and value is None:
            continue
        if name in _TEXTS:
            good = isinstance(value, str)
        elif name in _SECONDS or name == "layer_factor":
            real = isinstance(value, int | float) and not isinstance(value, bool)
            good = real and math.isfinite(value) and 0 < value < 1e9
        else:
            least = 0 if name == "zero_stage" else 1
            good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not good:
            raise ValueError(f"observations[{number}].{name} is {str(value)[:40]!r}")
    return Observation(**values)


def save(observations: Sequence[Observation], at: Path | None = None) -> tuple[Path, str | None]:
    """Add to the file; of one strategy of one job the newest stays. Returns the file, and a note when one
    that could not be used was put aside. Raises OSError: it cannot be written."""
    at = at or path()
    at.parent.mkdir(parents=True, exist_ok=True)
    with _locked(at.with_suffix(".lock")):
        stored, warning = load(at)
        note = None
        if warning is not None:
            aside = at.with_suffix(".unusable.json")
            at.replace(aside)
            note = f"{warning.short}; put aside as {aside.name}"
        merged = {observation.key: observation for observation in (*stored, *observations)}
        newest = sorted(merged.values(), key=lambda observation: observation.measured_at)[-_MOST:]
        body = {
            "schema": SCHEMA,
            "zerokit": __version__,
            "observations": [asdict(observation) for observation in newest],
        }
        write_whole(at, json.dumps(body, indent=1, allow_nan=False) + "\n", through_links=True)
    return at, note


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two tunes that end at once must not lose each other's times."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number")
