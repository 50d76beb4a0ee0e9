"""The ranks' files, the supervisor's findings and the plan become one report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerokit import __version__
from zerokit.errors import LauncherLost, RankFailed, ReportNotWritten
from zerokit.files import write_whole
from zerokit.launcher.rank_file import RankLog, Record, find_rank_files, rank_file, read_rank_file
from zerokit.launcher.verdict.rank_end import Exit, RankEnd, judge, settle
from zerokit.report.measured import on_gpu, peak_phase, unmeasured_problems, why_not_measured
from zerokit.report.predicted import (
    PredictAgain,
    compare_with_plan,
    predicted_of_rank,
    ways_to_need_less,
)
from zerokit.report.schema import SCHEMA, plain

_TIMELINE_POINTS = 4096  # over all ranks of one report
_FEWEST_POINTS = 32
_MOST_BAD_LINES = 100
_LIVE_SECONDS = 10.0
_TIMELINE_FIELDS = ("uptime_seconds", "phase", "steps", "allocated_bytes", "reserved_bytes",
                    "device_used_bytes", "host_rss_bytes")  # fmt: skip


def build_report(
    run_dir: Path,
    *,
    expected_ranks: int,
    outcome: str,
    exit_code: int,
    rank_exits: Iterable[Any] = (),
    plan: Mapping[str, Any] | None = None,
    predict_again: PredictAgain | None = None,
    accounts: Mapping[int, list[Record]] | None = None,
) -> dict[str, Any]:
    """The ``report.json`` of a run, from whatever its ranks left behind.

    Args:
        run_dir: the run folder.
        expected_ranks: how many ranks the run has; one without a usable file is listed as lost.
        outcome: how the supervisor saw the run end. It is made worse, never better: a run in which a
            rank did not finish is not ``ok``, and a failure that was an out-of-memory becomes ``oom``.
        exit_code: what belongs to ``outcome``.
        rank_exits: per rank that was seen to end ``rank``, ``host``, ``code``, ``signal``, ``at``
            (Unix seconds) and ``by_us``, as attributes or keys; may be empty.
        plan: the parsed ``plan.yaml``, or its ``chosen`` alone.
        predict_again: predicts for the job that ran, where it was not the plan's.
        accounts: rank -> what was read of its file while it ran: used where the file is gone.
    """
    logs, problems = _read_logs(run_dir)
    gone = {rank: records for rank, records in (accounts or {}).items() if rank not in logs}
    for rank, records in sorted(gone.items()):
        path = rank_file(run_dir, rank)
        logs[rank] = RankLog(rank=rank, path=path, records=records)
        problems.append(f"{path.name} is gone: removed during the run; what was read of it before is used")
    exits = {exit_.rank: exit_ for exit_ in map(Exit.of, rank_exits)}
    numbers = sorted({*range(expected_ranks), *logs, *exits})
    if len(numbers) > expected_ranks:
        problems.append(f"{len(numbers)} ranks wrote or ended, {expected_ranks} were started")
    ends, first = settle(judge(rank, logs.get(rank), exits.get(rank)) for rank in numbers)
    if outcome in ("interrupted", "hung", "timed_out"):
        ends = [_ended_with_run(end) for end in ends]
    points = max(_FEWEST_POINTS, _TIMELINE_POINTS // max(1, len(numbers)))
    ranks = [_rank_report(end, logs.get(end.rank), exits.get(end.rank), plan, points) for end in ends]
    problems += [f"rank {end.rank} left no report" for end in ends if end.rank not in logs]
    problems += unmeasured_problems(ranks)
    outcome, exit_code = _truthful(outcome, exit_code, ends, first)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "zerokit": __version__,
        "outcome": outcome,
        "exit_code": exit_code,
        **_run_facts(logs),
        "expected_ranks": expected_ranks,
        "ranks": ranks,
        "first_failure": _first_failure(first, ranks) if first else None,
        "problems": problems,
    }
    report["predicted_vs_measured"] = compare_with_plan(report, plan, predict_again)
    if outcome == "oom" and report["first_failure"] is not None:
        report["first_failure"]["try_next"] = ways_to_need_less(plan)
    clean: dict[str, Any] = plain(report)
    return clean


def report_of_folder(run_dir: Path, plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The report of a run without ``report.json``: still running, or its launcher was killed.

    ``outcome`` is then also ``running``, which is never written to a file.
    """
    logs, _ = _read_logs(run_dir)
    starts = [start for log in logs.values() if (start := log.last("start"))]
    expected = max((int(start.get("world_size") or 1) for start in starts), default=len(logs))
    report = build_report(run_dir, expected_ranks=expected, outcome="ok", exit_code=0, plan=plan)
    heard = max((_last_time(log) for log in logs.values()), default=0.0)
    unfinished = any(rank["state"] == "lost" for rank in report["ranks"])
    if unfinished and report["first_failure"] is None and time.time() - heard < _LIVE_SECONDS:
        report["outcome"], report["exit_code"] = "running", 0
        for rank in report["ranks"]:
            if rank["state"] == "lost" and rank["reported"]:
                rank["state"] = "running"
        report["problems"] = [text for text in report["problems"] if not text.endswith("left no report")]
    return report


def write_report(run_dir: Path, report: Mapping[str, Any]) -> None:
    """Write ``report.json`` and ``report.html``, each whole or not at all.

    Raises:
        ReportNotWritten: the disk is full or the folder cannot be written; what was there stays.
    """
    from zerokit.report.html import render_html

    texts = {
        "report.json": json.dumps(report, indent=1, allow_nan=False) + "\n",
        "report.html": render_html(report),
    }
    failed: ReportNotWritten | None = None
    for name, text in texts.items():
        try:
            _replace(run_dir / name, text)
        except ReportNotWritten as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed during the run
        write_whole(path, text)
    except OSError as error:
        raise ReportNotWritten(
            f"{path} could not be written: {error.strerror or error}; {_way_out(path)}"
        ) from error


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


def _read_logs(run_dir: Path) -> tuple[dict[int, RankLog], list[str]]:
    logs: dict[int, RankLog] = {}
    problems: list[str] = []
    bad: list[str] = []
    for path in find_rank_files(run_dir):
        try:
            log = read_rank_file(path)
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {error.strerror}")
            continue
        bad += [str(line) for line in log.bad_lines]
        if log.interleaved():
            pids = ", ".join(str(pid) for pid in dict.fromkeys(log.writers()))
            problems.append(f"{path.name}: two processes (pids {pids}) wrote as rank {log.rank}")
        if log.records:
            logs[log.rank] = log
    problems += bad[:_MOST_BAD_LINES]
    if len(bad) > _MOST_BAD_LINES:
        problems.append(f"{len(bad) - _MOST_BAD_LINES} more bad lines")
    return logs, problems


def _truthful(outcome: str, exit_code: int, ends: list[RankEnd], first: RankEnd | None) -> tuple[str, int]:
    """The outcome, made worse where the ranks' own files say so."""
    if outcome not in ("ok", "rank_failed", "launcher_lost"):
        return outcome, exit_code
    if first is not None and outcome in ("ok", "rank_failed"):
        return ("oom" if first.oom is not None else "rank_failed"), RankFailed.exit_code
    states = {end.state for end in ends}
    if outcome == "ok" and states == {"stopped"}:
        return "stopped", 0
    if outcome == "ok" and states != {"finished"}:
        return "launcher_lost", LauncherLost.exit_code
    return outcome, exit_code


def _ended_with_run(end: RankEnd) -> RankEnd:
    """A rank without a last line in a run that was ended on purpose was ended with it."""
    from dataclasses import replace

    return replace(end, state="terminated") if end.state == "lost" and end.phase is not None else end


def _run_facts(logs: Mapping[int, RankLog]) -> Record:
    starts = [start for log in logs.values() if (start := log.last("start"))]
    begun = min((start["time"] for start in starts if "time" in start), default=None)
    ended = max((_last_time(log) for log in logs.values()), default=None)
    return {
        "script": starts[0].get("script") if starts else None,
        "device": starts[0].get("device") if starts else None,
        "started_at": begun,
        "elapsed_seconds": round(ended - begun, 3) if begun is not None and ended is not None else None,
    }


def _last_time(log: RankLog) -> float:
    return max((float(record.get("time") or 0) for record in log.life()), default=0.0)


def _rank_report(
    end: RankEnd, log: RankLog | None, exit_: Exit | None, plan: Mapping[str, Any] | None, points: int
) -> Record:
    start = (log.last("start") if log else None) or {}
    known = (log.last("end", "tick") if log else None) or {}
    allocated, reserved = known.get("peak_allocated_bytes"), known.get("peak_reserved_bytes")
    device = start.get("device")
    gpu = on_gpu(device, allocated)
    measure = "peak_allocated_bytes" if gpu else "peak_host_rss_bytes"
    why, fix = why_not_measured(device, known, end.state) or (None, None)
    details: dict[str, Record] = known.get("phases") or {}
    phases = {name: value for name, phase in details.items() if isinstance(value := phase.get(measure), int)}
    return {
        "rank": end.rank,
        "host": start.get("host") or (exit_.host if exit_ else None) or "unknown",
        "state": end.state,
        "signal": end.signal,
        "exit_code": end.exit_code,
        "error": end.error,
        "reported": log is not None,
        "device": device,
        "not_measured": why,
        "not_measured_fix": fix,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "peak_device_used_bytes": known.get("peak_device_used_bytes"),
        "device_total_bytes": known.get("device_total_bytes"),
        "fragmentation_bytes": reserved - allocated if allocated is not None and reserved else None,
        "alloc_retries": known.get("alloc_retries"),
        "peak_host_rss_bytes": known.get("peak_host_rss_bytes") or 0,
        "baseline_host_rss_bytes": known.get("baseline_host_rss_bytes"),
        "peak_phase": peak_phase(phases, gpu=gpu),
        "phases": phases,
        "phase_details": details,
        **predicted_of_rank(plan, end.rank),
        "steps": known.get("steps") or 0,
        "micro_steps": known.get("micro_steps") or 0,
        "phase": known.get("phase"),
        "median_step_seconds": known.get("median_step_seconds"),
        "engine": _facts(log, "engine"),
        "timed": _facts(log, "timed"),
        "leaks": known.get("leaks") or [],
        "last_heard_at": known.get("time"),
        "restarts": max(0, len(set(log.writers())) - 1) if log else 0,
        "notes": [note for note in log.life() if note["type"] == "note"][:50] if log else [],
        "timeline": _timeline(log, points) if log else [],
        "timeline_fields": list(_TIMELINE_FIELDS),
    }


def _facts(log: RankLog | None, type_: str) -> Record | None:
    """The rank's last record of a type, without the line's own fields."""
    found = log.last(type_) if log else None
    return {k: v for k, v in found.items() if k not in ("type", "rank", "pid", "time")} if found else None


def _timeline(log: RankLog, most: int) -> list[list[Any]]:
    points: list[list[Any]] = []
    for record in log.life():
        if record["type"] == "timeline" and record.get("fields") == list(_TIMELINE_FIELDS):
            kept = record.get("points")
            points = [p for p in kept if isinstance(p, list) and len(p) == len(_TIMELINE_FIELDS)] if (
                isinstance(kept, list)) else []  # fmt: skip
        elif record["type"] in ("tick", "end"):
            points.append([record.get(name) for name in _TIMELINE_FIELDS])
    return _thin(points, most)


def _thin(points: list[list[Any]], most: int) -> list[list[Any]]:
    """At most ``most`` points, the fullest of each stretch, so that no peak is lost."""
    if len(points) <= most:
        return points
    size = -(-len(points) // most)
    return [max(points[i : i + size], key=_fullness) for i in range(0, len(points), size)]


def _fullness(point: list[Any]) -> int:
    value = point[3] if point[3] is not None else point[6]
    return value if isinstance(value, int) else 0


def _first_failure(first: RankEnd, ranks: list[Record]) -> Record:
    rank = next(rank for rank in ranks if rank["rank"] == first.rank)
    kind = "oom" if first.oom else "exception" if first.traceback else "signal" if first.signal else "exit"
    failure: Record = {
        "rank": first.rank, "host": rank["host"], "kind": kind, "error": first.error,
        "signal": first.signal, "exit_code": first.exit_code, "phase": first.phase, "step": first.step,
        "at": first.at, "traceback": first.traceback,
    }  # fmt: skip
    if first.oom is not None:
        failure["oom"] = {
            **first.oom,
            "predicted_peak_allocated_bytes": rank["predicted_peak_allocated_bytes"],
            "predicted_components": rank["predicted_components"],
            "measured_peak_allocated_bytes": rank["peak_allocated_bytes"],
            "measured_peak_host_rss_bytes": rank["peak_host_rss_bytes"],
        }
    return failure
