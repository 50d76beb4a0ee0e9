"""``report.json`` as it is read back: checked at the border, tolerant of fields it does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zerokit.errors import FileInputError

SCHEMA = "zerokit.report/1"
_MOST_BYTES = 256 << 20

Outcome = Literal["ok", "rank_failed", "oom", "hung", "launcher_lost", "interrupted", "running"]
State = Literal["finished", "failed", "terminated", "lost", "running"]
Bytes = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)


class RankReport(_Part):
    """One rank of a run. Sizes in bytes; None where there is no GPU or nothing is known."""

    rank: Annotated[int, Field(ge=0)]
    host: str
    state: State
    signal: int | None = None
    exit_code: int | None = None
    error: str | None = None
    reported: bool = True
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    peak_device_used_bytes: Bytes | None = None
    device_total_bytes: Bytes | None = None
    fragmentation_bytes: int | None = None
    alloc_retries: int | None = None
    peak_host_rss_bytes: Bytes = 0
    baseline_host_rss_bytes: Bytes | None = None
    peak_phase: str | None = None
    phases: dict[str, Bytes] = {}
    phase_details: dict[str, dict[str, Any]] = {}
    predicted_peak_allocated_bytes: Bytes | None = None
    steps: int = 0
    median_step_seconds: float | None = None
    leaks: list[dict[str, Any]] = []
    restarts: int = 0
    timeline: list[list[Any]] = []


class RunReport(_Part):
    """One run."""

    schema_: Literal["zerokit.report/1"] = Field(alias="schema")
    outcome: Outcome
    exit_code: int
    script: str | None = None
    device: str | None = None
    elapsed_seconds: float | None = None
    ranks: list[RankReport]
    first_failure: dict[str, Any] | None = None
    predicted_vs_measured: dict[str, Any] | None = None
    problems: list[str] = []

    @property
    def on_gpu(self) -> bool:
        """Whether any rank measured GPU memory."""
        return any(rank.peak_allocated_bytes is not None for rank in self.ranks)


def load_report(path: Path) -> dict[str, Any]:
    """Read and check a ``report.json``.

    Raises:
        FileInputError: it is missing, damaged, or not a report.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileInputError(path, f"cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise FileInputError(path, "is too large for a report")
    try:
        report = json.loads(data)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise FileInputError(path, "is not JSON: is it damaged?", line) from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise FileInputError(path, f"is not a zerokit report (schema {SCHEMA})")
    try:
        RunReport.model_validate(report)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FileInputError(path, f"{place}: {first['msg']}") from error
    return report
