"""What the plan predicted, beside what a run measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from zerokit.domain.phases import ESTIMATED_PHASES, PHASES
from zerokit.domain.planned import Chosen, world_size
from zerokit.report.measured import (
    NOT_A_BARE_LOOP,
    bare_loop_of_plan,
    had_engine,
    init_bytes,
    is_bare_loop,
    on_gpu,
    reached_end_of,
    worst_rank,
)
from zerokit.report.schema import Difference
from zerokit.report.what_ran import chosen_as_ran, differences, options_to_plan

Report = Mapping[str, Any]
Plan = Mapping[str, Any]


def part(plan: Any, name: str) -> Mapping[str, Any]:
    """A mapping of a plan, or of one in it; empty where there is none."""
    value = plan.get(name) if isinstance(plan, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def chosen_of(plan: Plan | None) -> Chosen:
    """The plan's choice: of a whole plan, or the choice itself; empty where there is none."""
    is_whole = isinstance(plan, Mapping) and "chosen" in plan
    return cast(Chosen, part(plan if is_whole else {"chosen": plan}, "chosen"))


def estimate_of(plan: Plan | None) -> Mapping[str, Any]:
    """The estimate of a plan's choice; empty where there is none."""
    return part(chosen_of(plan), "estimate")


def predicted_rank(plan: Plan | None, rank: int) -> Mapping[str, Any]:
    """The estimate's entry for one rank: its own, or that of the group of like ranks it is in."""
    for entry in estimate_of(plan).get("per_rank") or ():
        if not isinstance(entry, Mapping):
            continue
        span = entry.get("ranks")
        if isinstance(span, list | tuple) and len(span) == 2 and span[0] <= rank <= span[1]:
            return entry
        if span is None and entry.get("rank") == rank:
            return entry
    return {}


def predicted_of_rank(plan: Plan | None, rank: int) -> dict[str, Any]:
    """What the plan says of one rank, under the names of ``report.json``."""
    entry = predicted_rank(plan, rank)
    return {
        "predicted_peak_allocated_bytes": entry.get("peak_allocated_bytes"),
        "predicted_peak_phase": entry.get("peak_phase"),
        "predicted_phases": dict(entry.get("phases") or {}),
        "predicted_components": dict(entry.get("components") or {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedAgain:
    """A prediction for the job that ran: ``plan``, with its estimate, ``by`` that of a plan or a rehearsal of
    the command; or ``why_not``, a sentence, and the ``command`` that would rehearse it. ``note``: what is
    worth saying of the plan's estimate."""

    by: Literal["estimate", "rehearsal"] = "estimate"
    plan: Plan | None = None
    why_not: str | None = None
    command: str | None = None
    note: str | None = None


PredictAgain = Callable[[Mapping[str, Any], list[Difference]], PredictedAgain]
"""Predicts for the job that ran: takes the plan and what differs from it."""


def compare_with_plan(
    report: Report,
    plan: Plan | None,
    predict_again: PredictAgain | None = None,
    rehearsed: PredictedAgain | None = None,
) -> dict[str, Any] | None:
    """Predicted beside measured, for the worst rank, by phase, and the step time.

    On GPUs it is ``torch.cuda.max_memory_allocated``; where that was not measured, nothing stands beside
    the prediction. On CPU ranks the tensors that a GPU would hold
    are in host memory, on top of what the Python process itself takes (read when the engine is made, less
    the model's tensors): that baseline is measured, not predicted, and is said. Of the phases only the
    first is compared there: a process keeps much of what its tensors free (glibc's arenas), so the
    resident memory of a later phase tells of the phases before it as much as of its own tensors. A step
    time is predicted for GPUs alone: it says nothing of CPU ranks, or of ranks that did not use their GPU.

    A prediction stands beside a measurement only where the run did what was predicted: else it is made
    again for what ran, with ``predict_again``, or left out. The same goes for a phase that a rank did not
    get through. A run that ended well without any engine is compared with a rehearsal alone; CPU ranks
    that had none whose baseline could be read, with nothing.

    ``rehearsed``, a rehearsal of the command, takes the plan's place; where that describes a bare loop and
    the run was none (``zerokit.report.measured``), the plan's figures stand in ``bare_loop``.
    """
    reported = [rank for rank in report["ranks"] if rank["reported"]]
    if not estimate_of(plan) or not reported:
        return None
    is_over = all(rank["state"] in ("finished", "stopped") for rank in reported)
    is_gpu = any(on_gpu(rank.get("device"), rank["peak_allocated_bytes"]) for rank in reported)
    is_unlike = is_over and _plan_of(rehearsed) is None  # plans are of DeepSpeed, rehearsals of what runs
    if not any(had_engine(rank) for rank in reported) and (is_unlike or not is_gpu):
        return None
    differing = _differing(report["ranks"], plan)
    again = predict_again(plan or {}, differing) if differing and predict_again is not None else None
    if differing:
        result = _beside(reported, _plan_of(again) or plan, usable=_plan_of(again) is not None, is_gpu=is_gpu)
    else:
        result = _beside(reported, plan, usable=True, is_gpu=is_gpu)
        loop = bare_loop_of_plan(chosen_of(plan), result)
        if loop is not None or _plan_of(rehearsed) is not None:
            again = rehearsed
            if _plan_of(again) is not None:
                result = _beside(reported, _plan_of(again), usable=True, is_gpu=is_gpu)
        if loop is not None:
            result["bare_loop"] = loop
    is_rehearsed = _plan_of(again) is not None and again is not None and again.by == "rehearsal"
    if is_gpu and "bare_loop" not in result and not is_rehearsed and is_bare_loop(chosen_of(plan)):
        result["note"] = NOT_A_BARE_LOOP
    result["plan_options"] = options_to_plan(plan, differing)
    result["plan_folder"] = (plan or {}).get("folder")
    result["rehearsed_with"] = chosen_of(plan).get("rehearsed_with")
    return {**result, **_rests_on(differing, again, result.get("note"))}


def plan_as_ran(
    ranks: Sequence[Mapping[str, Any]], plan: Plan | None, predict_again: PredictAgain | None
) -> Plan | None:
    """The plan; where the run was not its job, with what ran in place of what was planned, and with the
    estimate of that, if one can be made."""
    differing = _differing(ranks, plan)
    if not differing:
        return plan
    again = predict_again(plan or {}, differing) if predict_again is not None else None
    if (predicted := _plan_of(again)) is not None:
        return predicted
    chosen = {key: value for key, value in chosen_of(plan).items() if key != "estimate"}
    return {**(plan or {}), "chosen": chosen_as_ran(chosen, differing)}


def _differing(ranks: Sequence[Mapping[str, Any]], plan: Plan | None) -> list[Difference]:
    """What ran otherwise than planned; nothing of a run that ended before there was anything to tell."""
    reached = any(rank.get("engine") or rank["steps"] for rank in ranks)
    return differences(plan, ranks) if reached else []


def _plan_of(again: PredictedAgain | None) -> Plan | None:
    return again.plan if again is not None else None


def _beside(
    reported: list[Mapping[str, Any]], plan: Plan | None, *, usable: bool, is_gpu: bool
) -> dict[str, Any]:
    """What was measured, beside the plan's figures where those are ``usable``."""
    ranks: list[Mapping[str, Any]] = [
        {**rank, **predicted_of_rank(plan if usable else None, rank["rank"])} for rank in reported
    ]
    result = _gpu(ranks) if is_gpu else _host(ranks, _offloaded_bytes(plan))
    estimate = estimate_of(plan) if usable else {}
    planned_gpu = part(plan, "cluster").get("gpu")  # a rank whose GPU has no name is taken for it
    is_other_gpu = bool(planned_gpu) and any(rank.get("gpu") not in (None, planned_gpu) for rank in ranks)
    is_timed = any(rank["peak_allocated_bytes"] is not None for rank in ranks) and not is_other_gpu
    times = [rank["median_step_seconds"] for rank in ranks if rank["median_step_seconds"]]
    result["step_seconds"] = _pair(
        estimate.get("step_seconds") if is_timed else None, statistics.median(times) if times else None
    )
    result["min_vram_bytes"] = estimate.get("min_vram_bytes")
    result["components"] = {
        phase: parts for phase, parts in (estimate.get("components_by_phase") or {}).items() if is_gpu
    }
    return result


def _rests_on(differing: list[Difference], again: PredictedAgain | None, note: str | None) -> dict[str, Any]:
    """What the comparison rests on: the plan, another prediction, or nothing, and why."""
    anew = again is not None and again.plan is not None
    planned = None if differing else "plan"
    facts: dict[str, Any] = {
        "differences": [difference.to_dict() for difference in differing],
        "predicted_for": "what ran" if anew else planned,
        "predicted_by": again.by if again is not None and anew else planned,
    }
    if again is not None and again.note:
        facts["note"] = "\n".join(filter(None, (note, again.note)))
    if again is not None and not anew:
        facts |= {"not_predicted": again.why_not, "rehearse_command": again.command}
    return facts


def _pair(
    predicted: float | None, measured: float | None, *, comparable: bool = True
) -> dict[str, Any] | None:
    """Both figures and the error of the prediction, as a fraction of what was measured. Not ``comparable``:
    what was measured is not all that was predicted, and an error would mean nothing."""
    if predicted is None and measured is None:
        return None
    error = (predicted - measured) / measured if comparable and predicted is not None and measured else None
    return {"predicted": predicted, "measured": measured, "error_fraction": error}


def _gpu(ranks: list[Mapping[str, Any]]) -> dict[str, Any]:
    worst = worst_rank(ranks, lambda rank: rank["peak_allocated_bytes"])
    pairs = {
        rank["rank"]: _peak(rank, rank["predicted_peak_allocated_bytes"], rank["peak_allocated_bytes"])
        for rank in ranks
    }
    return {
        "kind": "gpu_memory",
        "rank": worst["rank"],
        "peak_bytes": pairs[worst["rank"]],
        "phases": _phases(worst, 0, tuple(name for name in PHASES if name != "load")),
        "per_rank": [{"rank": rank, **(pair or {})} for rank, pair in pairs.items()],
    }


def _peak(rank: Mapping[str, Any], predicted: int | None, measured: int | None) -> dict[str, Any] | None:
    return _pair(predicted, measured, comparable=reached_end_of(rank, "step"))


def _host(ranks: list[Mapping[str, Any]], offloaded_bytes: int) -> dict[str, Any]:
    worst = worst_rank(ranks, lambda rank: rank["peak_host_rss_bytes"])
    baseline = worst["baseline_host_rss_bytes"]
    pairs = {}
    for rank in ranks:
        predicted, beside = rank["predicted_peak_allocated_bytes"], rank["baseline_host_rss_bytes"]
        unknown = predicted is None or beside is None
        on_host = None if unknown else predicted + beside + offloaded_bytes
        pairs[rank["rank"]] = _peak(rank, on_host, rank["peak_host_rss_bytes"])
    return {
        "kind": "host_memory",
        "rank": worst["rank"],
        "peak_bytes": pairs[worst["rank"]],
        "baseline_bytes": baseline,
        "phases": _phases(worst, (baseline or 0) + offloaded_bytes, () if baseline is None else ("init",)),
        "per_rank": [{"rank": rank, **(pair or {})} for rank, pair in pairs.items()],
        "note": "CPU ranks do not check a prediction for GPUs: predicted are the tensors that a GPU would "
        "hold and the process as measured when DeepSpeed began, not libraries that load later or what CPU "
        "operators take; nor phases after init, since a process keeps much of what its tensors free.",
    }


def _offloaded_bytes(plan: Plan | None) -> int:
    """What one rank of the plan keeps in host memory by itself: offloaded states."""
    chosen = chosen_of(plan)
    if "cpu" not in (chosen.get("offload_optimizer"), chosen.get("offload_param")):
        return 0
    nodes = int(part(plan, "request").get("nodes") or 1)
    return int(estimate_of(plan).get("host_bytes_per_node") or 0) * nodes // world_size(chosen)


def _phases(rank: Mapping[str, Any], baseline_bytes: int, compared: tuple[str, ...]) -> dict[str, Any]:
    predicted: Mapping[str, int] = rank["predicted_phases"]
    peaks: dict[str, int] = rank["phases"]
    names = [*ESTIMATED_PHASES, *(name for name in peaks if name not in ESTIMATED_PHASES)]
    pairs = {}
    for name in names:
        expected = predicted.get(name) if name in compared else None
        if name == "init" and name in compared and "load" in predicted:  # measured init holds both, too
            expected = max(predicted["load"], predicted.get("init", 0))
        shifted = expected + baseline_bytes if isinstance(expected, int) else None
        measured = init_bytes(peaks) if name == "init" else peaks.get(name)
        pair = _pair(shifted, measured, comparable=reached_end_of(rank, name))
        if pair is not None:
            pairs[name] = pair
    return pairs
