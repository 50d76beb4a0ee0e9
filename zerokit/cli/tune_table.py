"""The result of ``zerokit tune`` for people: predicted beside measured, and what was kept."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from zerokit.cli import plan_text
from zerokit.units import format_gib, format_seconds

_HEAD = ("trial", "step predicted", "measured", "error", "memory predicted", "measured", "error")
_WIDTHS = (7, 16, 12, 9, 18, 12, 9)


def text(body: Mapping[str, Any]) -> str:
    """One page."""
    count, gpus = len(body["trials"]), body["gpus"]
    where = (
        f"{gpus} CPU rank{'s' if gpus != 1 else ''}" if body["gpu"] == "cpu" else f"{gpus} × {body['gpu']}"
    )
    steps = f"{body['steps']} steps each"
    lines = [f"{body['model']} on {where}: {count} plan{'' if count == 1 else 's'}, {steps}"]
    lines += [plan_text.heading("Assumed"), *plan_text.bullets(body["assumptions"])]
    lines += [plan_text.heading("Tried" if body["folder"] else "To be tried")]
    for trial in body["trials"]:
        lines += textwrap.wrap(f"{trial['trial']}  {trial['description']}", 100, initial_indent="  ",
                               subsequent_indent="     ")  # fmt: skip
    lines += ["", "".join(f"{name:>{width}}" for name, width in zip(_HEAD, _WIDTHS, strict=True))]
    lines += [_row(trial, body["fastest"]) for trial in body["trials"]]
    if any(trial.get("memory") == "host" for trial in body["trials"]):
        lines.append("  memory: of the host, by rank, the Python process included")
    if body["files"]:
        lines += [plan_text.heading("Written"), *(f"  {path}" for path in body["files"].values())]
    if (kept := body["calibration"]) is not None:
        lines += [plan_text.heading("Kept for later plans here"), *plan_text.bullets(_kept(kept))]
    if body["folder"]:
        lines += [plan_text.heading("Runs"), f"  {body['folder']}"]
    if body["next"]:
        lines += [plan_text.heading("Next"), f"  {body['next']}"]
    return "\n".join(lines)


def _kept(kept: Mapping[str, Any]) -> list[str]:
    if not kept["kept"]:
        return [f"nothing: {kept['why']}"]
    times = "1 step time" if kept["kept"] == 1 else f"{kept['kept']} step times"
    return [f"{times} in {kept['file']}", *([kept["why"]] if kept["why"] else [])]


def _row(trial: Mapping[str, Any], fastest: int | None) -> str:
    seconds, peak = trial.get("measured_step_seconds"), trial.get("measured_peak_bytes")
    predicted_seconds, predicted_peak = trial["predicted_step_seconds"], trial["predicted_peak_bytes"]
    cells = (
        str(trial["trial"]),
        _time(predicted_seconds), _time(seconds), _error(predicted_seconds, seconds),
        _size(predicted_peak), _size(peak), _error(predicted_peak, peak),
    )  # fmt: skip
    line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
    if trial["trial"] == fastest:
        return f"{line}  fastest"
    why = trial.get("problem") or "; ".join(trial.get("differences") or ())
    return f"{line}  {trial['outcome']}: {why}" if why and trial.get("problem") else f"{line}  {why}".rstrip()


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _size(size: int | None) -> str:
    return "–" if size is None else format_gib(size)


def _error(predicted: float | None, measured: float | None) -> str:
    return "–" if predicted is None or not measured else f"{predicted / measured - 1:+.1%}"
