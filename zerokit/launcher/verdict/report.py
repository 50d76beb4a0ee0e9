"""The ranks' files, the supervisor's findings and the plan become one report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit import __version__
from zerokit.errors import ReportNotWritten
from zerokit.files import write_whole
from zerokit.launcher.rank_file import TIMELINE_FIELDS, RankEvents, RankLog, Record, rank_file_name
from zerokit.launcher.run_folder import REPORT_FILE, REPORT_PAGE
from zerokit.launcher.verdict.evidence import Evidence
from zerokit.launcher.verdict.rank_end import RankEnd, left_problems
from zerokit.launcher.verdict.verdict import Verdict, judge, training_findings
from zerokit.machine.detect import catalogue_name
from zerokit.report.measured import on_gpu, peak_phase, thinned, unmeasured_problems, why_not_measured
from zerokit.report.predicted import (
    PredictAgain,
    PredictedAgain,
    chosen_of,
    compare_with_plan,
    plan_as_ran,
    predicted_of_rank,
)
from zerokit.report.schema import (
    SCHEMA,
    Failure,
    Outcome,
    Predicted,
    RankReport,
    RankState,
    RunNote,
    RunReport,
    checked,
    plain,
)

MOST_RANKS = 1 << 20  # more than any run has: a greater number in a file is damage
_TIMELINE_POINTS = 4096  # over all ranks of one report
_FEWEST_POINTS = 32
_LIVE_SECONDS = 10.0


def build_report(
    evidence: Evidence,
    *,
    verdict: Verdict | None = None,
    plan: Mapping[str, Any] | None = None,
    predict_again: PredictAgain | None = None,
    elapsed_seconds: float | None = None,
) -> RunReport:
    """The ``report.json`` of a run, from whatever its ranks left behind. ``plan``: the parsed ``plan.yaml``,
    or its ``chosen`` alone; ``elapsed_seconds``: where the ranks' own times cannot be trusted."""
    verdict = verdict or judge(evidence)
    ends, logs, warnings = verdict.ends, evidence.logs, list(evidence.problems)
    if len(ends) > evidence.expected_ranks:
        warnings.append(
            f"{len(ends)} ranks wrote or ended, more than the {evidence.expected_ranks} that were started"
        )
    points = max(_FEWEST_POINTS, _TIMELINE_POINTS // max(1, len(ends)))
    ranks = [
        checked(
            RankReport,
            _rank_report(end, logs.get(end.rank), plan, points),
            rank_file_name(end.rank),
            warnings,
        )
        for end in ends
    ]
    warnings += [_left_nothing(end.rank) for end in ends if end.rank not in logs]
    as_dicts = _as_dicts(ranks)
    found = training_findings(logs, is_accepted=evidence.is_accepted)
    texts = [finding.text for finding in found]
    warnings += [*unmeasured_problems(as_dicts), *texts, *left_problems(ends)]
    warnings += verdict.differences
    facts = _run_facts(logs)
    if elapsed_seconds is not None:
        facts["elapsed_seconds"] = round(elapsed_seconds, 3)
    first = verdict.first_failure
    failure = None
    if first is not None:
        values = _first_failure(first, next(rank for rank in ranks if rank.rank == first.rank))
        if verdict.outcome is Outcome.OOM:
            ran = plan_as_ran(as_dicts, plan, predict_again)
            predicted = predicted_of_rank(ran, first.rank)
            at_peak = ("predicted_peak_allocated_bytes", "predicted_components")
            values["oom"] = {**values.get("oom", {}), **{name: predicted[name] for name in at_peak}}
        failure = checked(Failure, values, rank_file_name(first.rank), warnings)
    rehearsed_otherwise = chosen_of(plan).get("rehearsed_with")  # the script's figures: no bare loop's go on
    compared = compare_with_plan({"ranks": as_dicts}, plan, None if rehearsed_otherwise else predict_again)
    return RunReport(
        schema=SCHEMA,
        zerokit=__version__,
        outcome=verdict.outcome,
        exit_code=verdict.exit_code,
        why=plain(verdict.why),
        **plain(facts),
        expected_ranks=evidence.expected_ranks,
        ranks=ranks,
        first_failure=failure,
        predicted_vs_measured=None
        if compared is None
        else checked(Predicted, compared, "plan.yaml", warnings),
        problems=plain(warnings),
        notes=[RunNote.model_validate(plain(finding.to_dict())) for finding in found],
    )


def _as_dicts(ranks: Iterable[RankReport]) -> list[dict[str, Any]]:
    """What a plan is compared with; ``gpu``: the catalogue's name of the rank's, else the driver's."""
    return [
        {
            **rank.model_dump(mode="json"),
            "gpu": catalogue_name(rank.device_name, rank.device_total_bytes) or rank.device_name,
        }
        for rank in ranks
    ]


def with_prediction(
    report: RunReport, plan: Mapping[str, Any] | None, prediction: PredictedAgain
) -> RunReport:
    """The report of a run that was rehearsed, was not its plan's job, or not its plan's bare loop, compared
    with that prediction; one that was predicted again keeps that where there is no other."""
    before = report.predicted_vs_measured
    if before is not None and before.predicted_for == "what ran" and prediction.plan is None:
        told = {"not_predicted": prediction.why_not, "rehearse_command": prediction.command}
        return report.model_copy(update={"predicted_vs_measured": before.model_copy(update=told)})
    as_dicts = _as_dicts(report.ranks)
    compared = compare_with_plan(
        {"ranks": as_dicts}, plan or prediction.plan, lambda *_: prediction, prediction
    )
    if compared is None:
        return report
    problems = list(report.problems)
    predicted = checked(Predicted, compared, "the prediction", problems)
    return report.model_copy(update={"predicted_vs_measured": predicted, "problems": problems})


def report_of_folder(
    run_dir: Path, plan: Mapping[str, Any] | None = None, problems: Sequence[str] = ()
) -> RunReport:
    """The report of a run without ``report.json``: still running, or its launcher was killed. ``outcome`` is
    then also ``running``, which is never written to a file. ``problems``: known already."""
    evidence = Evidence(expected_ranks=0)
    evidence.read_files(run_dir)
    evidence.expected_ranks, unlikely = _expected_ranks(evidence.logs)
    evidence.problems = [*problems, *evidence.problems, *unlikely]
    report = build_report(evidence, plan=plan)
    last_record = max((_last_time(log) for log in evidence.logs.values()), default=0.0)
    unfinished = any(rank.state is RankState.LOST for rank in report.ranks)
    if unfinished and report.first_failure is None and time.time() - last_record < _LIVE_SECONDS:
        return _as_running(report)
    return report


def _as_running(report: RunReport) -> RunReport:
    ranks = [
        rank.model_copy(update={"state": RankState.RUNNING})
        if rank.state is RankState.LOST and rank.reported
        else rank
        for rank in report.ranks
    ]
    still_running = {_left_nothing(rank.rank) for rank in ranks}
    problems = [text for text in report.problems if text not in still_running]
    changed = {"outcome": Outcome.RUNNING, "exit_code": 0, "why": None, "ranks": ranks, "problems": problems}
    return report.model_copy(update=changed)


def _left_nothing(rank: int) -> str:
    return f"rank {rank} left no report"


def _expected_ranks(logs: Mapping[int, RankLog]) -> tuple[int, list[str]]:
    """How many ranks the run has, by what they say themselves; a number that cannot be is a problem."""
    stated = {rank: (log.last("start") or {}).get("world_size") or 1 for rank, log in sorted(logs.items())}
    problems = [
        f"{rank_file_name(rank)}: a world_size of {size:,} cannot be (at most {MOST_RANKS:,}): not used"
        for rank, size in stated.items()
        if size > MOST_RANKS
    ]
    return max((size for size in stated.values() if size <= MOST_RANKS), default=len(logs)), problems


def write_report(run_dir: Path, report: RunReport) -> None:
    """Write ``report.json`` and ``report.html``, each whole or not at all. Raises ReportNotWritten: the disk
    is full or the folder cannot be written; what was there stays."""
    from zerokit.report.context import read_context
    from zerokit.report.html import render_html

    texts = {
        REPORT_FILE: json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n",
        REPORT_PAGE: render_html(report, read_context(run_dir)),
    }
    failed = []
    for path, text in ((run_dir / name, text) for name, text in texts.items()):
        try:
            run_dir.mkdir(parents=True, exist_ok=True)  # it may have been removed during the run
            write_whole(path, text, mode=0o600)
        except OSError as error:
            failed.append(f"{path} could not be written: {error.strerror or error}; {_way_out(path)}")
    if failed:
        raise ReportNotWritten(failed[0])


def _way_out(path: Path) -> str:
    """What to do about a report that could not be written."""
    again = f"run `zerokit report {path.parent}`, which reads the ranks' own files"
    if not path.parent.is_dir():
        return f"{path.parent} is not a folder any more: run again with another --run-dir"
    if path.is_dir():
        return f"remove that folder and {again}"
    if not os.access(path.parent, os.W_OK):
        return f"make {path.parent} writable and {again}"
    return f"free space there and {again}"


def _run_facts(logs: Mapping[int, RankLog]) -> Record:
    starts = [start for log in logs.values() if (start := log.last("start"))]
    started = min((start["time"] for start in starts if "time" in start), default=None)
    ended = max((_last_time(log) for log in logs.values()), default=None)
    return {
        "script": starts[0].get("script") if starts else None,
        "device": starts[0].get("device") if starts else None,
        "started_at": started,
        "elapsed_seconds": round(ended - started, 3) if started is not None and ended is not None else None,
    }


def _last_time(log: RankLog) -> float:
    return max((float(record.get("time") or 0) for record in log.life()), default=0.0)


_AS_RECORDED = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_used_bytes", "device_total_bytes",
                "device_name", "alloc_retries", "baseline_host_rss_bytes", "phase",
                "median_step_seconds")  # fmt: skip
_RECORDED_OR: Mapping[str, Any] = {
    "peak_host_rss_bytes": 0, "steps": 0, "steps_counted_by": "engine", "micro_steps": 0,
    "most_micro_steps": 0, "leaks": [],
}  # fmt: skip


def _rank_report(end: RankEnd, log: RankLog | None, plan: Mapping[str, Any] | None, points: int) -> Record:
    start = (log.last("start") if log else None) or {}
    last_record = (log.last("end", "tick") if log else None) or {}
    allocated, reserved = last_record.get("peak_allocated_bytes"), last_record.get("peak_reserved_bytes")
    device = start.get("device")
    gpu = on_gpu(device, allocated)
    measure = "peak_allocated_bytes" if gpu else "peak_host_rss_bytes"
    why, fix = why_not_measured(device, last_record, end.state) or (None, None)
    details: dict[str, Record] = last_record.get("phases") or {}
    phases = {name: value for name, phase in details.items() if isinstance(value := phase.get(measure), int)}
    return {
        **{name: getattr(end, name) for name in ("rank", "host", "state", "signal", "exit_code", "error")},
        **{name: last_record.get(name) for name in _AS_RECORDED},
        **{name: last_record.get(name) or default for name, default in _RECORDED_OR.items()},
        "reported": log is not None,
        "device": device,
        "not_measured": why,
        "not_measured_fix": fix,
        "fragmentation_bytes": reserved - allocated if allocated is not None and reserved else None,
        "peak_phase": peak_phase(phases, gpu=gpu),
        "phases": phases,
        "phase_details": details,
        **predicted_of_rank(plan, end.rank),
        "engine": _facts(log, "engine"),
        "timed": _facts(log, "timed"),
        "last_heard_at": last_record.get("time"),
        "restarts": max(0, len(set(log.writers())) - 1) if log else 0,
        "notes": [note for note in log.life() if note["type"] == "note"][:50] if log else [],
        "timeline": _timeline(log, points) if log else [],
        "timeline_fields": list(TIMELINE_FIELDS),
        "events": _events(log) if log else [],
        "started_at": start.get("time"),
    }


def _facts(log: RankLog | None, type_: str) -> Record | None:
    """The rank's last record of a type, without the line's own fields."""
    record = log.last(type_) if log else None
    return {k: v for k, v in record.items() if k not in ("type", "rank", "pid", "time")} if record else None


def _timeline(log: RankLog, most: int) -> list[list[Any]]:
    """At most so many points, the fullest of each stretch, so that no peak is lost."""
    points: list[list[Any]] = []
    for record in log.life():
        if record["type"] == "timeline" and record.get("fields") == list(TIMELINE_FIELDS):
            kept = record.get("points")
            points = [p for p in kept or () if isinstance(p, list) and len(p) == len(TIMELINE_FIELDS)]
        elif record["type"] in ("tick", "end"):
            points.append([record.get(name) for name in TIMELINE_FIELDS])

    def fullness(point: list[Any]) -> int:
        value = point[3] if point[3] is not None else point[6]
        return value if isinstance(value, int) else 0

    return thinned(points, most, fullness)


def _events(log: RankLog) -> list[Record]:
    events = RankEvents()
    for record in log.life():
        if record["type"] == "timeline":
            events.resume(record.get("events"))
        elif record["type"] in ("tick", "end"):
            events.add(record)
    return [{"at": event.at, "what": event.kind, "times": event.times} for event in events.events]


def _first_failure(first: RankEnd, rank: RankReport) -> Record:
    names = ("rank", "host", "kind", "error", "signal", "exit_code", "phase", "step", "at", "traceback")
    failure: Record = {name: getattr(first, name) for name in names}
    failure["last_line"] = first.last_line if first.kind == "exit" else None
    if first.oom is not None:
        failure["oom"] = {
            **first.oom,
            "measured_peak_allocated_bytes": rank.peak_allocated_bytes,
            "measured_peak_host_rss_bytes": rank.peak_host_rss_bytes,
        }
    return failure
