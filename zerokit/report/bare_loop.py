"""Whether a run was the bare training loop that a plan describes which was not rehearsed with its script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.report.schema import RunReport
from zerokit.units import MIB

MOST_FRACTION = 0.05
MOST_BYTES = 256 * MIB
"""A peak that is off by more than both is not that of the plan's loop. The replay of bare loops was at most
0.9 % off in 357 runs on H200s (docs/accuracy.md); libraries' workspaces beside a small model stay below
256 MiB."""


NOTE = (
    "The plan was not rehearsed with the script: predicted is a bare training loop, without what a script "
    "adds (padding masks, a loss of its own)."
)


def is_bare(chosen: Mapping[str, Any]) -> bool:
    """Whether a plan's figures are of no script, this one or another."""
    return not isinstance(chosen.get("rehearsed"), Mapping) and not chosen.get("rehearsed_with")


def is_off(compared: Mapping[str, Any]) -> bool:
    """Whether the predicted peak of GPU memory, or a phase's, is beyond both bounds.

    Memory of CPU ranks is never: it does not check a prediction for GPUs.
    """
    pairs = (compared.get("peak_bytes"), *(compared.get("phases") or {}).values())
    return compared["kind"] == "gpu_memory" and any(pair and is_far(pair) for pair in pairs)


def is_far(pair: Mapping[str, Any]) -> bool:
    """Whether a prediction in bytes is off by more than both bounds; False where nothing can be compared."""
    error = pair.get("error_fraction")
    if error is None:
        return False
    return bool(abs(error) > MOST_FRACTION and abs(pair["predicted"] - pair["measured"]) > MOST_BYTES)


def wants_rehearsal(run: RunReport) -> bool:
    """Whether a run that ended well was another job than its plan's and is not predicted again, or allocated
    otherwise than a prediction that was made without its script."""
    predicted = run.predicted_vs_measured
    good = run.outcome in ("ok", "stopped", "not_as_planned", "trained_otherwise")
    if predicted is None or not good or (run.on_gpu and not run.gpu_measured):
        return False
    if predicted.predicted_for is None or predicted.bare_loop is not None:
        return True
    return predicted.predicted_by == "estimate" and is_off(predicted.model_dump())


def of_plan(chosen: Mapping[str, Any], compared: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan's figures, for ``report.json``, where they are of a bare loop and the run was none.

    Args:
        chosen: the plan's; ``rehearsed`` where it was rehearsed with the run's very command.
        compared: the run beside the plan.
    """
    if isinstance(chosen.get("rehearsed"), Mapping) or not is_off(compared):
        return None
    return {
        "peak_bytes": compared["peak_bytes"],
        "phases": {name: pair for name, pair in compared["phases"].items() if pair["predicted"] is not None},
        "step_seconds": compared["step_seconds"],
        "basis": (chosen.get("estimate") or {}).get("basis"),
        "rehearsed_with": chosen.get("rehearsed_with"),
    }
