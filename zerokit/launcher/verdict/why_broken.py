"""Why ranks lost a peer though none failed by itself: what would hang elsewhere ends at once with Gloo.

A rank that leaves its loop early closes its connections, and the others' collectives break; NCCL's watchdog
ends ranks that wait for too long. The ranks' last records say as much as those of ranks that hang.
"""

from __future__ import annotations

import re
from pathlib import Path

from zerokit.domain.phases import WITHOUT_TRAINING
from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.evidence import RankFiles
from zerokit.launcher.verdict.rank_end import RankEnd
from zerokit.launcher.verdict.rank_view import (
    Cause,
    RankView,
    names,
    ranks_of,
    they_wait,
    traceback_frames,
    view,
)
from zerokit.launcher.verdict.verdict import Verdict
from zerokit.launcher.verdict.why_hung import explain
from zerokit.report.schema import Outcome, RankState
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


def explain_failure(run_dir: Path, verdict: Verdict, files: RankFiles) -> Cause | None:
    """The likely cause; None where a rank failed by itself, was lost, or the records do not tell."""
    first = verdict.first_failure
    if verdict.outcome is Outcome.RANK_FAILED and first is not None and not first.consequence:
        return _other_degrees(first)
    if verdict.outcome is not Outcome.RANK_FAILED or first is None or not first.consequence:
        return None
    if any(end.state is RankState.LOST and end.left_at is None for end in verdict.ends):
        return None
    views = [_view(run_dir, end, files.logs.get(end.rank)) for end in verdict.ends]
    return _by_gloo(views, files) or explain(views)


def _other_degrees(first: RankEnd) -> Cause | None:
    """The script shares its model between ranks, which its DeepSpeed configuration was not made for."""
    said = f"{first.error or ''}\n{first.traceback or ''}"
    if _PIPELINE_REFUSED in said:
        return Cause(
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
    return Cause(
        kind="other_degrees",
        what=f"the script has {counted(ranks, 'data-parallel rank')}, and its configuration "
        f"is for {planned}: it shares the model between ranks",
        fix="Plan with the script's own degrees: zerokit plan --pp STAGES for a PipelineModule, --tp N for "
        "tensor parallelism",
        ranks=(first.rank,),
    )


def _by_gloo(views: list[RankView], files: RankFiles) -> Cause | None:
    """Gloo ended ranks for what a peer sent them: some ranks evaluated or generated, whose gathers of weights
    were taken for those of the others, or their tensors differ. A rank that it ended wrote no record of its
    call; its peers did."""
    ended, sizes = _ended_by_gloo(views, files)
    if not ended:
        return None
    gathers = any(call.module for view in views for call in view.calls)  # ZeRO-3 does, for a forward
    phases = {}
    for one in views:
        log = files.logs.get(one.rank)
        phases[one.rank] = ((log.last("end", "tick") if log else None) or {}).get("phases") or ()
    for phase, (_, did) in WITHOUT_TRAINING.items() if gathers else ():
        lone = [view for view in views if phase in phases[view.rank]]
        if lone and len(lone) < len(views):
            return Cause(
                kind=f"{phase}_on_some_ranks",
                what=f"{names(lone)} {did} and the others did not, so their collectives no longer match: "
                + sizes + they_wait(views, [*lone, *ended]),
                fix=f"Let every rank do it: under ZeRO-3 each forward of {phase} gathers weights from all",
                ranks=ranks_of(lone),
            )  # fmt: skip
    return Cause(
        kind="different_shapes",
        what=sizes + they_wait(views, ended),
        fix="Make the tensor the same on all ranks: pad it, or gather the sizes first",
        ranks=ranks_of(ended),
    )


def _ended_by_gloo(views: list[RankView], files: RankFiles) -> tuple[list[RankView], str]:
    """The ranks that Gloo ended for what a peer sent them, and of the first what it said."""
    sizes = {view.rank: _OTHER_SIZE.search(files.last_words.get(view.rank, "")) for view in views}
    ended = [view for view in views if sizes[view.rank] is not None]
    match = sizes[ended[0].rank] if ended else None
    if match is None:
        return [], ""
    return ended, f"{names(ended)} got {match[1]} bytes where its own tensor has room for {match[2]}"


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
