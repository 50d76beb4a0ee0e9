"""What `zerokit doctor --measure` found on this machine, kept for later plans. Imports no torch.

One JSON file per host name in the user's cache folder (a home folder is often shared by many
machines): ``$XDG_CACHE_HOME/zerokit/measured/HOST.json``.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zerokit.files import cache_folder, write_whole

SCHEMA = "zerokit.measured/1"
_RATES = ("_flops", "_per_second", "host_factor", "host_factor_low", "host_factor_high")
"""How the names of figures end that must be positive where they were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One point of the curve of ``all_reduce``, ``all_gather`` or ``reduce_scatter``: for bytes of the whole
    tensor nccl-tests' bus bandwidth, which is bytes over time, times 2(n-1)/n for all-reduce and (n-1)/n for
    the other two."""

    operation: str
    message_bytes: int
    bus_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rates of one machine, all its GPUs busy at once; ``None``: not measured.

    Attributes:
        device: ``cuda`` or ``cpu``.
        device_name: as torch prints it.
        ranks: processes that measured side by side, one per GPU (two on a CPU).
        matmul_flops: best square matrix product in ``matmul_precision``, per device.
        memory_copy_bytes_per_second: device to itself, read and written bytes together.
        host_to_device_bytes_per_second: per GPU, pinned memory, all GPUs at once.
        cpu_adam_parameters_per_second: of the node, all its cores.
        host_memory_bytes_per_second: of the node: elementwise work on fp32 tensors, read and written
            bytes together, all ranks at once with an equal share of the cores.
        host_cast_bytes_per_second: of the node, as that: casts from fp32 to (pinned) bf16.
        host_factor: seconds that the host takes to issue operators over those of the reference host
            (``zerokit.timing.host_speed``); below 1 is faster.
        host_factor_low, host_factor_high: between them are nine tenths of the probe's rounds, of all ranks.
        host_factor_by_rank: the middle of each rank's.
        cpu_adam_kind: ``deepspeed`` or ``torch`` (fused), whichever could be run.
        not_measured: parts (``zerokit.doctor.measure.PARTS``) that did not end in their time, and why.
    """

    host: str
    device: str
    device_name: str
    ranks: int
    torch_version: str
    measured_at: str
    matmul_flops: float | None = None
    matmul_precision: str | None = None
    memory_copy_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    device_to_host_bytes_per_second: float | None = None
    cpu_adam_parameters_per_second: float | None = None
    cpu_adam_kind: str | None = None
    collectives: tuple[Collective, ...] = ()
    host_memory_bytes_per_second: float | None = None
    host_cast_bytes_per_second: float | None = None
    host_factor: float | None = None
    host_factor_low: float | None = None
    host_factor_high: float | None = None
    host_factor_by_rank: tuple[float, ...] = ()
    not_measured: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For the file and for ``--json``."""
        return {"schema": SCHEMA, **asdict(self)}


def path(environment: Mapping[str, str] | None = None, host: str | None = None) -> Path:
    """Where this machine's measurements are kept."""
    name = re.sub(r"[^A-Za-z0-9.-]", "_", host or platform.node()).lstrip(".")[:100] or "unnamed"
    return cache_folder(environment) / "measured" / f"{name}.json"


def save(measured: Measured, to: Path) -> None:
    """Write the file, folder and all. Raises OSError: it cannot be written."""
    to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(to, json.dumps(measured.as_dict(), indent=1) + "\n", through_links=True)


def load(at: Path | None = None) -> tuple[Measured | None, str]:
    """What was measured on this machine, and the reason when there is nothing to use. A damaged or foreign
    file is a reason, not an error: planning goes on without it."""
    at = at or path()
    try:
        values = json.loads(at.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, "not measured on this machine; `zerokit doctor --measure` does"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{at} cannot be read ({type(error).__name__}); measure again"
    try:
        measured = from_dict(values)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None, f"{at} is not a measurement of this version of zerokit; measure again"
    return measured, f"measured on {measured.host} at {measured.measured_at} ({at})"


def from_dict(values: Any) -> Measured:
    """Read back what ``as_dict`` gave. Raises ValueError, TypeError, KeyError: something is missing, unknown
    or no positive number."""
    values = dict(values)
    if values.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    points = tuple(Collective(**point) for point in values.pop("collectives"))
    by_rank = tuple(values.pop("host_factor_by_rank", ()))
    _positive(*by_rank)
    measured = Measured(**values, collectives=points, host_factor_by_rank=by_rank)
    for point in points:
        _positive(point.message_bytes, point.bus_bytes_per_second)
    if not all(isinstance(text, str) for text in dict(measured.not_measured).values()):
        raise TypeError("not a text")
    _positive(measured.ranks)
    rates = (value for name, value in values.items() if name.endswith(_RATES))
    _positive(*(rate for rate in rates if rate is not None))
    return measured


def _positive(*numbers: object) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError("not a number")
        if not (math.isfinite(number) and number > 0):
            raise ValueError("not a positive number")
