"""Hangs in which all ranks are in collectives: what is not alike, or that nothing moves between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from zerokit.launcher.verdict.cause import Cause, at, names, ranks_of, waiting_in, when
from zerokit.launcher.verdict.rank_view import Call, RankView

_ALIKE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
                    "_all_gather_base", "_allgather_base", "reduce_scatter_tensor",
                    "_reduce_scatter_base"})  # fmt: skip
_SIZED = _ALIKE - {"all_gather"}  # its lists may differ in size: it is then made of broadcasts
_STARTS = frozenset({"init_process_group", "new_group"})
_WITHOUT_TRAINING = frozenset({"eval", "generate"})
_TRAINING = frozenset({"forward", "backward", "step"})
_ONE_SIDED = frozenset({"send", "recv"})


def first_difference(views: Sequence[RankView]) -> Cause | None:
    """In each group, the first call that is not the same on all of its ranks.

    By our own record, which knows modules, and then by PyTorch's, which has the calls of C++ too.
    """
    recorded_calls = [(view, view.calls) for view in views]
    flight_calls = [(view, view.flight) for view in views]
    return _first_difference(recorded_calls) or _first_difference(flight_calls)


def _first_difference(records: Sequence[tuple[RankView, Sequence[Call]]]) -> Cause | None:
    for group in dict.fromkeys(call.group for _, calls in records for call in calls):
        members = [
            (view, calls_by_count) for view, calls in records if (calls_by_count := _by_count(calls, group))
        ]
        if not members or len(members[0][0].groups.get(group, ())) == 1:
            continue
        (reference, reference_calls), *others = members
        for other_view, calls_of_view in others:
            if other_view.groups.get(group) != reference.groups.get(group):
                continue
            cause = _first_unlike(reference, reference_calls, other_view, calls_of_view)
            if cause is not None:
                return cause
    return None


def _first_unlike(
    one: RankView, calls: Mapping[int, Call], other: RankView, other_calls: Mapping[int, Call]
) -> Cause | None:
    """Of two ranks: where they began to do unlike things, if that became unlike calls.

    An evaluation on one rank gathers what a training forward does, in the same order: on GPUs the two are
    matched, and only the backward of the one meets a gather of the other that is not its own.
    """
    apart: Cause | None = None
    for count in sorted(calls.keys() & other_calls.keys()):
        a, b = calls[count], other_calls[count]
        apart = apart or _training_apart(one, a, other, b)
        cause = _differ(one, a, other, b)
        if cause is not None:
            return apart or cause
    return None


def unlike_sizes(views: Sequence[RankView]) -> str | None:
    """A collective that ended although the ranks entered it with unlike tensors; None where there is none.

    NCCL compares nothing: where the calls of two ranks differ, each reads and writes what is not the other's.
    Among the calls that the ranks remember (:data:`zerokit.launcher.rank.calls.RING`).
    """
    first, others = (views[0], views[1:]) if views else (RankView(rank=0), ())
    for group in dict.fromkeys(call.group for call in first.calls):
        reference_calls = _by_count(first.calls, group)
        for view in others:
            if view.groups.get(group) != first.groups.get(group):
                continue
            calls = _by_count(view.calls, group)
            apart: Cause | None = None
            for count in sorted(reference_calls.keys() & calls.keys()):
                a, b = reference_calls[count], calls[count]
                apart = apart or _training_apart(first, a, view, b)
                if a.operation == b.operation and a.operation in _SIZED and _elements(a) != _elements(b):
                    what = f"rank {first.rank} entered {a}{when(a, first)} and rank {view.rank} {b}"
                    fix = "make the tensor the same on all ranks (pad it, or gather the sizes first)"
                    if apart is not None:
                        what, fix = apart.what, apart.fix[0].lower() + apart.fix[1:]
                    return f"{what}: GPUs do not notice, and the result is neither's; {fix}"
    return None


def _elements(call: Call) -> int | None:
    return None if call.shape is None else math.prod(call.shape)


def _by_count(calls: Sequence[Call], group: str) -> Mapping[int, Call]:
    return {c.count: c for c in calls if c.group == group and c.operation not in _ONE_SIDED}


def _differ(one: RankView, a: Call, other: RankView, b: Call) -> Cause | None:
    if not _alike(a, b) and (cause := _in_other_phase(one, a, other, b)) is not None:
        return cause
    head = f"collective {a.count} of the group: rank {one.rank} entered {a}{when(a, one)}, " \
           f"rank {other.rank} {b}{when(b, other)}"  # fmt: skip
    if a.operation != b.operation:
        return Cause(
            kind="different_collectives", what=head,
            fix="A branch that depends on the rank or its data calls one of them: let all ranks call both",
            ranks=(one.rank, other.rank),
        )  # fmt: skip
    sized = a.operation in _ALIKE and a.shape is not None and b.shape is not None
    if sized and (a.shape, a.dtype) != (b.shape, b.dtype):
        return Cause(
                kind="different_shapes", what=head,
                fix="Make the tensor the same on all ranks: pad it, or gather the sizes first",
                ranks=(one.rank, other.rank),
            )  # fmt: skip
    return None


def _training_apart(one: RankView, a: Call, other: RankView, b: Call) -> Cause | None:
    """One trains and the other evaluates or generates, be their calls alike or not."""
    return _in_other_phase(one, a, other, b) if {a.phase, b.phase} & _TRAINING else None


def _alike(a: Call, b: Call) -> bool:
    return (a.operation, a.shape, a.module) == (b.operation, b.shape, b.module)


def _in_other_phase(one: RankView, a: Call, other: RankView, b: Call) -> Cause | None:
    """One evaluates or generates: on GPUs its collectives are matched with the other's, and it may go on."""
    lone, call, others, others_call = (
        (one, a, other, b) if a.phase in _WITHOUT_TRAINING else (other, b, one, a)
    )
    if call.phase not in _WITHOUT_TRAINING or others_call.phase in _WITHOUT_TRAINING:
        return None
    return Cause(
        kind=f"{call.phase}_on_some_ranks",
        what=f"rank {lone.rank} entered {call} in {call.phase}{when(call, lone)}, rank "
        f"{others.rank} {others_call} in {others_call.phase}{when(others_call, others)}, "
        "and they were taken for the same",
        fix=f"Let every rank do it: under ZeRO-3 each forward of {call.phase} gathers weights from all",
        ranks=(lone.rank,),
    )


def _different_counts(one: RankView, a: Call, other: RankView, b: Call) -> Cause:
    """Two ranks wait in calls that are not each other's, and what came between is no longer remembered."""
    return Cause(
        kind="different_collectives",
        what=f"rank {one.rank} waits in {a}, call {a.count} of its group{at(one)}, "
        f"rank {other.rank} in {b}, call {b.count}{at(other)}",
        fix="One of them made a call that the other left out: look for a branch on the rank or its data",
        ranks=(one.rank, other.rank),
    )


def groups(views: Sequence[RankView]) -> Cause | None:
    """The ranks wait in collectives of different groups."""
    waiting = waiting_in(views)
    by_group: dict[str, list[RankView]] = {}
    for view in waiting:
        assert view.waits_in is not None
        by_group.setdefault(view.waits_in.group, []).append(view)
    calls = [v.waits_in for v in waiting if v.waits_in is not None]
    if len(by_group) < 2 or any(call.operation in _STARTS for call in calls):
        return None
    parts = []
    for group, members in by_group.items():
        call = members[0].waits_in
        ranks = list(members[0].groups.get(group, ()))
        parts.append(f"{names(members)} in {call} of group {group} (ranks {ranks}{at(members[0])})")
    return Cause(
        kind="wrong_group",
        what="the ranks wait in different groups: " + "; ".join(parts),
        fix="Pass the same group on every rank, and call new_group in the same order on all of them",
        ranks=ranks_of(waiting),
    )


def network(views: Sequence[RankView]) -> Cause | None:
    """All ranks entered the same collective, and it does not end."""
    waiting = waiting_in(views)
    if len(waiting) < len(views):
        return None
    call = waiting[0].waits_in
    assert call is not None
    for view in waiting[1:]:
        own_call = view.waits_in
        if own_call is not None and (own_call.count, own_call.operation) != (call.count, call.operation):
            return _different_counts(waiting[0], call, view, own_call)
    starting = call.operation in _STARTS
    shared = f"all ranks wait in the same {call}{when(call, waiting[0])}"
    return Cause(
        kind="network",
        what=shared + (", where they connect" if starting else "") + ": no data moves between them",
        fix="Look at the network between the nodes: an interface that is down, a firewall, a wrong interface "
        "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); NCCL_DEBUG=INFO tells which one is used",
        ranks=ranks_of(waiting),
    )
