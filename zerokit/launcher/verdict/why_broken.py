"""Why ranks lost a peer though none failed by itself: what would hang elsewhere ends at once with Gloo.

A rank that leaves its loop early closes its connections, and the others' collectives break; NCCL's watchdog
ends ranks that wait for too long. The ranks' last records say as much as those of ranks that hang.
"""

from __future__ import annotations

import re
from pathlib import Path

from zerokit.domain.phases import WITHOUT_TRAINING
from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.evidence import Evidence
from zerokit.launcher.verdict.rank_end import RankEnd
from zerokit.launcher.verdict.rank_view import RankView, names, ranks_of, they_wait, traceback_frames, view
from zerokit.launcher.verdict.verdict import Verdict
from zerokit.launcher.verdict.why_hung import PAD, explain, on_some_ranks
from zerokit.report.schema import Hang, Outcome, RankState
from zerokit.units import counted

_OTHER_SIZE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""Gloo ends a process so whose peer sends more than it expects (gloo/transport/tcp/pair.cc)."""


_PIPELINE_REFUSED = "incompatible with pipeline parallelism"
"""DeepSpeed 0.19.8, runtime/pipe/engine.py:76, of ZeRO-2 and ZeRO-3."""
_OTHER_WORLD = re.compile(
    r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size\s*"
    r"(\d+) != (\d+) \* (\d+) \* (\d+)"
)
"""DeepSpeed 0.19.8, runtime/config.py:603; its world is the data-parallel ranks alone."""


def explain_failure(run_dir: Path, verdict: Verdict, evidence: Evidence) -> Hang | None:
    """The likely cause; None where a rank failed by itself, was lost, or the records do not tell."""
    first = verdict.first_failure
    if verdict.outcome is Outcome.RANK_FAILED and first is not None and not first.consequence:
        return _other_degrees(first)
    if verdict.outcome is not Outcome.RANK_FAILED or first is None or not first.consequence:
        return None
    if any(end.state is RankState.LOST and end.left_at is None for end in verdict.ends):
        return None
    views = [_view(run_dir, end, evidence.logs.get(end.rank)) for end in verdict.ends]
    return _by_gloo(views, evidence) or explain(views)


def _other_degrees(first: RankEnd) -> Hang | None:
    """The script shares its model between ranks, which its DeepSpeed configuration was not made for."""
    said = f"{first.error or ''}\n{first.traceback or ''}"
    if _PIPELINE_REFUSED in said:
        return Hang(
            kind="pipeline_under_zero",
            what="the script builds a pipeline (PipelineModule), and its configuration has ZeRO-2 or ZeRO-3, "
            "which DeepSpeed refuses together",
            fix="Plan for a pipeline, zerokit plan --pp STAGES, which takes ZeRO-0 or ZeRO-1, or let the "
            "script build none",
            ranks=(first.rank,),
        )
    match = _OTHER_WORLD.search(said)
    if match is None:
        return None
    whole, micro_batch, accumulation, ranks = map(int, match.groups())
    planned = whole // max(1, micro_batch * accumulation)
    if planned <= ranks:
        return None
    return Hang(
        kind="other_degrees",
        what=f"the script has {counted(ranks, 'data-parallel rank')}, and its configuration "
        f"is for {planned}: it shares the model between ranks",
        fix="Plan with the script's own degrees: zerokit plan --pp STAGES for a PipelineModule, --tp N for "
        "tensor parallelism",
        ranks=(first.rank,),
    )


def _by_gloo(views: list[RankView], evidence: Evidence) -> Hang | None:
    """Gloo ended ranks for what a peer sent them: some ranks evaluated or generated, whose gathers of weights
    were taken for those of the others, or their tensors differ. A rank that it ended wrote no record of its
    call; its peers did."""
    said = {view.rank: _OTHER_SIZE.search(evidence.last_words.get(view.rank, "")) for view in views}
    ended = [view for view in views if said[view.rank] is not None]
    match = said[ended[0].rank] if ended else None
    if match is None:
        return None
    sizes = f"{names(ended)} got {match[1]} bytes where its own tensor has room for {match[2]}"
    gathers = any(call.module for view in views for call in view.calls)  # ZeRO-3 does, for a forward
    phases = {}
    for one in views:
        log = evidence.logs.get(one.rank)
        phases[one.rank] = ((log.last("end", "tick") if log else None) or {}).get("phases") or ()
    for phase, (_, did) in WITHOUT_TRAINING.items() if gathers else ():
        lone = [view for view in views if phase in phases[view.rank]]
        if lone and len(lone) < len(views):
            what = f"{names(lone)} {did} and the others did not, so their collectives no longer match: "
            return on_some_ranks(phase, lone, what + sizes + they_wait(views, [*lone, *ended]))
    what = sizes + they_wait(views, ended)
    return Hang(kind="different_shapes", what=what, fix=PAD, ranks=ranks_of(ended))


def _view(run_dir: Path, end: RankEnd, log: RankLog | None) -> RankView:
    finished = end.state is RankState.FINISHED or end.left_at is not None
    record = dict((log.last("calls") if log else None) or {})
    if end.traceback:
        record["frames"] = [[*frame] for frame in traceback_frames(end.traceback)]
    broken = end.consequence and not finished
    if not finished:
        record.pop("ending", None)
    known = RankView(rank=end.rank, steps=end.steps, exited=finished, broken=broken, left_at=end.left_at)
    return view(run_dir, known, record)
