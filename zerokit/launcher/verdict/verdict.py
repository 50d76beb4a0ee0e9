"""How a run ended: one judgement, from all that is known of it, with its exit code.

The supervisor calls it when nothing is left of a run, ``finish`` where zerokit itself was killed, and
``zerokit report`` for a run folder without a report. What the terminal says, ``report.json`` and the exit
code all come from the one :class:`Verdict`.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.evidence import Evidence, RankExit
from zerokit.launcher.verdict.rank_end import RankEnd, failed_alike, left_problems, rank_end, settle
from zerokit.launcher.verdict.rank_view import RankView, recorded
from zerokit.launcher.verdict.why_hung import unlike_sizes
from zerokit.report.schema import Outcome, RankState, RunNote, signal_name
from zerokit.report.training import find_straggler, finding, findings, why_unknown
from zerokit.units import counted, few, ranks_named


def training_findings(logs: Mapping[int, RankLog], *, is_accepted: bool = False) -> list[RunNote]:
    """What makes the training of these ranks doubtful, and the rank that is waited for. ``is_accepted``:
    values of the code that the run does not have were accepted."""
    ticks = {rank: log.last("end", "tick") or {} for rank, log in sorted(logs.items())}
    calls = ((rank, log.last("calls")) for rank, log in sorted(logs.items()))
    unlike = unlike_sizes([recorded(RankView(rank=rank), call) for rank, call in calls if call is not None])
    straggler, unknown = find_straggler(ticks), why_unknown(ticks)
    found = [*_no_step(logs), *findings(ticks, is_accepted=is_accepted)]
    return [
        *([finding(id="unlike-collective", text=unlike)] if unlike else []),
        *found,
        *([finding(id="straggler", text=str(straggler))] if straggler is not None else []),
        *([finding(id="waits-unmeasured", text=unknown)] if unknown else []),
    ]


def _no_step(logs: Mapping[int, RankLog]) -> list[RunNote]:
    """A DeepSpeed engine came up, and every rank finished without one of its steps."""
    ends = [log.last("end") for log in logs.values()]
    if not ends or not all(end is not None and end.get("state") == "finished" for end in ends):
        return []
    if any(end.get("steps") for end in ends if end) or not all(log.last("engine") for log in logs.values()):
        return []
    micro_steps = max(int(end.get("micro_steps") or 0) for end in ends if end)
    ran = f"{micro_steps} micro-batch{'es' if micro_steps != 1 else ''} of a rank ran"
    text = (
        f"no training step was seen: {ran}, and no optimizer step; give it more data or steps, or a smaller "
        "gradient accumulation"
    )
    return [finding(id="no-step", text=text, is_certain=micro_steps > 0)]


def warnings_of(engine: Mapping[str, Any]) -> list[str]:
    """One sentence for each kind of module; ``engine``: the ``engine`` line of a rank's file."""
    modules = engine.get("skippable")
    if engine.get("zero_stage") != 3 or not isinstance(modules, dict):
        return []
    warnings = []
    if experts := _names(modules.get("experts")):
        warnings.append(
            f"mixture of experts under ZeRO-3 without a leaf module ({experts}): a rank none of whose tokens "
            "go to an expert does not gather its weights, and the others hang; call deepspeed.utils."
            "set_z3_leaf_modules(model, [the class that holds the experts]) before the engine is made"
        )
    if towers := _names(modules.get("towers")):
        warnings.append(
            f"{towers} under ZeRO-3 runs only for batches with an image or sound: a rank whose batch has "
            "none does not gather its weights, and the others hang; give every batch one, if only a blank"
        )
    return warnings


def _names(value: object) -> str:
    return ", ".join(str(name) for name in value) if isinstance(value, list) else ""


_OF_SPEED = ("straggler", "waits-unmeasured", "no-step")
"""Findings that leave a training what it is, or whose script was to make no step."""
_MESSAGE_OF_PYTORCH = re.compile(r"(Tried to allocate [^.]*\.?[^.]*?[KMG]iB)\. .*", re.DOTALL)
"""Its sizes and advice follow the request; the report has them in its own words, and the whole below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the run ended, why in one sentence, each of its ranks by number, the failure that explains the
    others, and what the script did otherwise than its plan. ``reports_missing``: the only fault is that ranks
    that ended well left no complete report."""

    outcome: Outcome
    exit_code: int
    why: str
    ends: tuple[RankEnd, ...] = ()
    first_failure: RankEnd | None = None
    reports_missing: bool = False
    differences: tuple[str, ...] = ()


def launcher_status(code: int) -> int:
    """A launcher's exit code as a process's: ``deepspeed`` turns −9 into 247 (256 − 9)."""
    return code - 256 if 128 < code - 64 <= 191 else code


def judge(evidence: Evidence) -> Verdict:
    """Judge a run. What came first wins: a user's signal, a hang, a failing rank, a lost launcher. Nothing is
    a success but every rank's process ending with zero *and* its file saying that it finished."""
    exits = _exits_by_rank(evidence)
    killed = _killed_for_memory(evidence, exits)
    numbers = sorted({*range(evidence.expected_ranks), *evidence.logs, *exits})
    ended = (rank_end(n, evidence, exits.get(n), killed_for_memory=n == killed) for n in numbers)
    ends, first = settle(ended, [exit_.rank for exit_ in evidence.exits])
    if evidence.ended_on_purpose:
        ends = [  # a rank without a last line in such a run was ended with it
            replace(end, state=RankState.TERMINATED)
            if end.state is RankState.LOST and end.phase is not None
            else end
            for end in ends
        ]
    verdict = _decide(evidence, ends, first)
    return replace(verdict, ends=tuple(ends), first_failure=first)


# ---- the ranks


def _exits_by_rank(evidence: Evidence) -> dict[int, RankExit]:
    """Of several processes of one rank the one that failed first, else the last."""
    exits: dict[int, RankExit] = {}
    for exit_ in evidence.exits:
        if not (exit_.rank in exits and exits[exit_.rank].failed):
            exits[exit_.rank] = exit_
    silent = _silent_rank(evidence, exits)
    if silent is not None:
        exits[silent.rank] = silent
    return exits


def _silent_rank(evidence: Evidence, exits: Mapping[int, RankExit]) -> RankExit | None:
    """With a failing launcher and no failed rank, the rank that ended without a last line failed.

    Its status may have been reaped before the guard could read it, or the kernel may not show it
    (gVisor). DeepSpeed ends with the code of the rank that failed first.
    """
    if not evidence.launcher_code or evidence.launcher_lost or any(exit_.failed for exit_ in exits.values()):
        return None
    if any(
        log.last("error") is not None or (log.last("end") or {}).get("state") == "failed"
        for log in evidence.logs.values()
    ):
        return None
    started = [number for number, log in sorted(evidence.logs.items()) if log.last("start")]
    silent = [
        exits.get(number) or RankExit(rank=number, host=evidence.host)
        for number in {**exits, **dict.fromkeys(started)}
        if number not in evidence.logs or evidence.logs[number].last("end") is None
    ]
    if not silent:
        return None
    first = min(silent, key=lambda exit_: (exit_.at is None, exit_.at or 0.0))
    status = launcher_status(evidence.launcher_code)
    return replace(first, code=None if status < 0 else status, signal=-status if status < 0 else None)


def _killed_for_memory(evidence: Evidence, exits: Mapping[int, RankExit]) -> int | None:
    """The rank that the kernel killed because memory ran out: the first that died by SIGKILL by itself."""
    if evidence.oom_kills <= 0:
        return None
    killed = [
        exit_ for exit_ in exits.values()
        if exit_.signal == signals.SIGKILL and not evidence.ended(exit_, was_terminated=False)
    ]  # fmt: skip
    return min(killed, key=lambda exit_: exit_.at or 0.0).rank if killed else None


# ---- the run


def _decide(evidence: Evidence, ends: Sequence[RankEnd], first: RankEnd | None) -> Verdict:
    if evidence.interrupted_by is not None:
        number = evidence.interrupted_by
        why = f"interrupted by {signal_name(number)}"
        return Verdict(outcome=Outcome.INTERRUPTED, exit_code=128 + number, why=why)
    if evidence.hung is not None:
        return _verdict(Outcome.HUNG, evidence.hung)
    if evidence.timed_out is not None:
        return _verdict(Outcome.TIMED_OUT, evidence.timed_out)
    if first is not None:  # unless the ranks failed only because their launcher was lost
        late = first.at is None or (evidence.stopped_at is not None and first.at > evidence.stopped_at)
        if not evidence.launcher_lost or not (first.consequence or late):
            return _failure(first, ends)
    if evidence.launcher_lost is not None:
        return _verdict(Outcome.LAUNCHER_LOST, evidence.launcher_lost)
    return _judge_quiet_end(evidence, ends)


def _failure(first: RankEnd, ends: Sequence[RankEnd]) -> Verdict:
    if first.oom is None:
        alike = [end.rank for end in ends if failed_alike(end, first)]  # a fault of the script, not of one
        others = "all other ranks" if len(alike) == len(ends) - 1 > 1 else ranks_named(alike)
        also = f"; {others} failed with the same error" if alike else ""
        return _verdict(Outcome.RANK_FAILED, first.describe() + also)
    message = str(first.oom.get("message") or first.oom.get("error") or "an allocation failed")
    fault = _MESSAGE_OF_PYTORCH.sub(r"\1", message)
    if first.oom.get("killer"):
        fault = "host memory; the kernel's OOM-killer ended it"
    return _verdict(Outcome.OOM, f"rank {first.rank} on {first.host} ran out of memory: {fault}")


def _judge_quiet_end(evidence: Evidence, ends: Sequence[RankEnd]) -> Verdict:
    """A run in which nothing was seen to fail."""
    if evidence.launcher_code:
        status = launcher_status(evidence.launcher_code)
        ending = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with code {status}"
        began = evidence.exits or evidence.logs
        remark = "though no rank failed" if began else "before any rank started"
        return _verdict(Outcome.LAUNCHER_LOST, f"the launcher {ending} {remark}")
    missing = [number for number in range(evidence.expected_ranks) if number not in evidence.logs]
    if missing:
        ranks = counted(evidence.expected_ranks, "rank")
        why = f"{len(missing)} of {ranks} left no report (rank {few(missing)}): not a success"
        return _verdict(Outcome.LAUNCHER_LOST, why, reports_missing=True)
    unfinished = [end for end in ends if not end.state.is_good]
    if unfinished:
        why = (
            f"rank {unfinished[0].rank} on {unfinished[0].host}: {unfinished[0].error or unfinished[0].state}"
        )
        silent = all(end.state is RankState.LOST and end.left_at is None for end in unfinished)
        return _verdict(Outcome.LAUNCHER_LOST, why, reports_missing=silent)
    if any(end.state is RankState.STOPPED for end in ends):
        return _judge_stopped(evidence, ends)
    found = training_findings(evidence.logs, is_accepted=evidence.is_accepted)
    certain = next((note for note in found if note.is_certain), None)
    if certain is not None:
        return _held_to_plan(evidence, _verdict(Outcome.TRAINED_OTHERWISE, certain.text))
    why = f"{_all_ranks(evidence)} finished"
    doubtful = [*(note.what for note in found if note.id not in _OF_SPEED), *left_problems(ends)]
    if doubtful:
        why += f", but {doubtful[0].partition('; ')[0]}"
    return _held_to_plan(evidence, _verdict(Outcome.OK, why))


def _all_ranks(evidence: Evidence) -> str:
    return "the only rank" if evidence.expected_ranks == 1 else f"all {evidence.expected_ranks} ranks"


def _judge_stopped(evidence: Evidence, ends: Sequence[RankEnd]) -> Verdict:
    """A step limit ends all ranks at the same step, or the run was not what it seems."""
    others = [end.rank for end in ends if end.state is not RankState.STOPPED]
    if evidence.stop_ordered is not False and not others:
        return _verdict(Outcome.STOPPED, f"{_all_ranks(evidence)} stopped at the step limit")
    remark = f"but rank {others[0]} ended without reaching it" if others else "that nobody ordered"
    stopped = min(end.rank for end in ends if end.state is RankState.STOPPED)
    return _verdict(Outcome.LAUNCHER_LOST, f"rank {stopped} stopped at a step limit, {remark}")


def _held_to_plan(evidence: Evidence, verdict: Verdict) -> Verdict:
    """A script that ended well without doing what the plan says is no success."""
    differences = evidence.differences()
    if not differences:
        return verdict
    trained = [verdict.why] if verdict.outcome is Outcome.TRAINED_OTHERWISE else []
    why = "; ".join((*differences, *trained))
    return replace(_verdict(Outcome.NOT_AS_PLANNED, why), differences=tuple(differences))


def _verdict(outcome: Outcome, why: str, *, reports_missing: bool = False) -> Verdict:
    return Verdict(outcome=outcome, exit_code=outcome.exit_code, why=why, reports_missing=reports_missing)
