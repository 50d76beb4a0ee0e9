"""Why a run makes no progress: all ranks compared, the first difference, its likely cause and the fix.

Ranks of a job enter the same collectives in the same order. Where one does not, the others wait for ever.
So the ranks' records (:mod:`zerokit.launcher.rank.calls`) are laid beside each other, group by group, and
the ranks that are in no collective at all are looked at first: the others wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zerokit.domain.phases import TRAINING_PHASES, WITHOUT_TRAINING
from zerokit.launcher.verdict.rank_view import (
    Call,
    Frame,
    RankView,
    at,
    names,
    ranks_of,
    they_wait,
    verb,
    waiting_in,
    when,
)
from zerokit.report.schema import Hang

_ALIKE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
                    "_all_gather_base", "_allgather_base", "reduce_scatter_tensor",
                    "_reduce_scatter_base"})  # fmt: skip
_SIZED = _ALIKE - {"all_gather"}  # its lists may differ in size: it is then made of broadcasts
_STARTS = frozenset({"init_process_group", "new_group"})
_ONE_SIDED = frozenset({"send", "recv"})
PAD = "Make the tensor the same on all ranks: pad it, or gather the sizes first"


def first_difference(views: Sequence[RankView]) -> Hang | None:
    """In each group, the first call that is not the same on all of its ranks.

    By our own record, which knows modules, and then by PyTorch's, which has the calls of C++ too. Where two
    ranks began to do unlike things before, that is told: an evaluation on one rank gathers what a training
    forward does, in the same order: on GPUs the two are matched, and only the backward of the one meets a
    gather of the other that is not its own.
    """
    for records in ([(view, view.calls) for view in views], [(view, view.flight) for view in views]):
        for one, a, other, b, apart in _matched(records):
            if (cause := _differ(one, a, other, b)) is not None:
                return apart or cause
    return None


def _matched(
    records: Sequence[tuple[RankView, Sequence[Call]]],
) -> Iterator[tuple[RankView, Call, RankView, Call, Hang | None]]:
    """Calls of one number, of a group's first rank and of another; at last where one of both trained and the
    other did not, then or before."""
    for group in dict.fromkeys(call.group for _, calls in records for call in calls):
        members = [
            (view, by_count)
            for view, calls in records
            if (by_count := {c.count: c for c in calls if c.group == group and c.operation not in _ONE_SIDED})
        ]
        if not members or len(members[0][0].groups.get(group, ())) == 1:
            continue
        (one, its_calls), *others = members
        for other, other_calls in others:
            if other.groups.get(group) != one.groups.get(group):
                continue
            apart: Hang | None = None
            for count in sorted(its_calls.keys() & other_calls.keys()):
                a, b = its_calls[count], other_calls[count]
                if {a.phase, b.phase} & {*TRAINING_PHASES}:  # be the calls alike or not
                    apart = apart or _in_other_phase(one, a, other, b)
                yield one, a, other, b, apart


def unlike_sizes(views: Sequence[RankView]) -> str | None:
    """A collective that ended although the ranks entered it with unlike tensors; None where there is none.

    NCCL compares nothing: where the calls of two ranks differ, each reads and writes what is not the other's.
    Among the calls that the ranks remember (:data:`zerokit.launcher.rank.calls.RING`).
    """
    for first, a, view, b, apart in _matched([(view, view.calls) for view in views]):
        sizes = {None if call.shape is None else math.prod(call.shape) for call in (a, b)}
        alike = a.operation == b.operation and a.operation in _SIZED
        if alike and len(sizes) > 1 and first is views[0]:
            what = f"rank {first.rank} entered {a}{when(a, first)} and rank {view.rank} {b}"
            fix = "make the tensor the same on all ranks (pad it, or gather the sizes first)"
            if apart is not None:
                what, fix = apart.what, apart.fix[0].lower() + apart.fix[1:]
            return f"{what}: GPUs do not notice, and the result is neither's; {fix}"
    return None


def _differ(one: RankView, a: Call, other: RankView, b: Call) -> Hang | None:
    alike = (a.operation, a.shape, a.module) == (b.operation, b.shape, b.module)
    if not alike and (cause := _in_other_phase(one, a, other, b)) is not None:
        return cause
    head = f"collective {a.count} of the group: rank {one.rank} entered {a}{when(a, one)}, " \
           f"rank {other.rank} {b}{when(b, other)}"  # fmt: skip
    if a.operation != b.operation:
        return Hang(
            kind="different_collectives", what=head,
            fix="A branch that depends on the rank or its data calls one of them: let all ranks call both",
            ranks=(one.rank, other.rank),
        )  # fmt: skip
    sized = a.operation in _ALIKE and a.shape is not None and b.shape is not None
    if sized and (a.shape, a.dtype) != (b.shape, b.dtype):
        return Hang(kind="different_shapes", what=head, fix=PAD, ranks=(one.rank, other.rank))
    return None


def _in_other_phase(one: RankView, a: Call, other: RankView, b: Call) -> Hang | None:
    """One evaluates or generates: on GPUs its collectives are matched with the other's, and it may go on."""
    lone, call, others, others_call = (
        (one, a, other, b) if a.phase in WITHOUT_TRAINING else (other, b, one, a)
    )
    if call.phase not in WITHOUT_TRAINING or others_call.phase in WITHOUT_TRAINING:
        return None
    return on_some_ranks(
        call.phase,
        [lone],
        f"rank {lone.rank} entered {call} in {call.phase}{when(call, lone)}, rank "
        f"{others.rank} {others_call} in {others_call.phase}{when(others_call, others)}, "
        "and they were taken for the same",
    )


def on_some_ranks(phase: str, lone: Sequence[RankView], what: str) -> Hang:
    """Of ranks that alone evaluate or generate."""
    fix = f"Let every rank do it: under ZeRO-3 each forward of {phase} gathers weights from all"
    return Hang(kind=f"{phase}_on_some_ranks", what=what, fix=fix, ranks=ranks_of(lone))


def groups(views: Sequence[RankView]) -> Hang | None:
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
    return Hang(
        kind="wrong_group",
        what="the ranks wait in different groups: " + "; ".join(parts),
        fix="Pass the same group on every rank, and call new_group in the same order on all of them",
        ranks=ranks_of(waiting),
    )


def network(views: Sequence[RankView]) -> Hang | None:
    """All ranks entered the same collective, and it does not end."""
    waiting = waiting_in(views)
    if len(waiting) < len(views):
        return None
    call = waiting[0].waits_in
    assert call is not None
    for view in waiting[1:]:
        other = view.waits_in
        if other is not None and (other.count, other.operation) != (call.count, call.operation):
            first = waiting[0]  # what came between is no longer remembered
            return Hang(
                kind="different_collectives",
                what=f"rank {first.rank} waits in {call}, call {call.count} of its group{at(first)}, "
                f"rank {view.rank} in {other}, call {other.count}{at(view)}",
                fix="One of them made a call that the other left out: look for a branch on the rank or its "
                "data",
                ranks=(first.rank, view.rank),
            )
    starting = call.operation in _STARTS
    shared = f"all ranks wait in the same {call}{when(call, waiting[0])}"
    return Hang(
        kind="network",
        what=shared + (", where they connect" if starting else "") + ": no data moves between them",
        fix="Look at the network between the nodes: an interface that is down, a firewall, a wrong interface "
        "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); NCCL_DEBUG=INFO tells which one is used",
        ranks=ranks_of(waiting),
    )


_SAVES = ("save_checkpoint", "save_16bit_model", "save_fp16_model", "_zero3_consolidated_16bit_state_dict",
          "save_pretrained", "save_model", "save_state", "get_state_dict", "_save_checkpoint")  # fmt: skip


_MOST_TOLD = 4


def explain(views: Sequence[RankView]) -> Hang | None:
    """The likely cause; None where the records do not tell."""
    find = (_stopped, _exited_ranks, _saves_alone, _other_phase, _skipped_module, _not_there,
            first_difference, groups, network)  # fmt: skip
    return next((cause for one in find if (cause := one(views)) is not None), None)


def unexplained(views: Sequence[RankView]) -> Hang | None:
    """What each rank was doing, where that tells no cause; None where no rank has written it down."""
    recorded = [view for view in views if view.recorded and not view.exited]
    if not recorded:
        return None
    doing = "; ".join(f"rank {view.rank} {_doing([view])}" for view in recorded[:_MOST_TOLD])
    more = f"; and {len(recorded) - _MOST_TOLD} more" if len(recorded) > _MOST_TOLD else ""
    return Hang(
        kind="unknown",
        what=f"the ranks' records tell no cause: {doing}{more}",
        fix="Compare the stacks of the ranks in the run folder",
        ranks=ranks_of(recorded),
    )


def _stopped(views: Sequence[RankView]) -> Hang | None:
    stopped = [view for view in views if view.stopped]
    if not stopped:
        return None
    return Hang(
        kind="stopped",
        what=f"{names(stopped)} {verb(stopped, 'is', 'are')} stopped (SIGSTOP, a debugger or a suspended job)"
        + they_wait(views, stopped),
        fix="Continue it with `kill -CONT`, or find who stops it",
        ranks=ranks_of(stopped),
    )


def _exited_ranks(views: Sequence[RankView]) -> Hang | None:
    """Ranks that ended, or came to their script's end, while others wait in a collective."""
    exited = [view for view in views if view.exited or (view.ending and view.waits_in is None)]
    exited += [view for view in views if view.ending and view not in exited]
    waiting = [view for view in waiting_in(views) if view not in exited]
    if not exited or not waiting:
        return None
    if (saving := _saving(waiting)) is not None:
        return _lone_save(waiting, saving, exited)
    if exited[0].left_at is not None:
        path, _, line = exited[0].left_at.rpartition(":")
        left = [view for view in exited if view.left_at == exited[0].left_at]
        return Hang(
            kind="ended_early",
            what=f"{names(left)} left with os._exit at {Path(path).name}:{line} after step {left[0].steps}"
            + they_wait(views, left),
            fix="Let every rank come to its end, or raise an error there: os._exit tells the others nothing",
            ranks=ranks_of(left),
        )
    call = waiting[0].waits_in
    assert call is not None
    phase = call.phase if call.phase in WITHOUT_TRAINING else None
    if phase is not None:
        return Hang(
            kind=f"{phase}_on_some_ranks",
            what=f"{names(exited)} left the script{they_wait(views, exited)}, in {phase}",
            fix="Let every rank evaluate and generate: under ZeRO-3 each forward gathers weights from all",
            ranks=ranks_of(exited),
        )
    return Hang(
        kind="uneven_batches",
        what=f"{names(exited)} left the training loop after step {exited[0].steps}{they_wait(views, exited)}"
        ": the ranks have different numbers of batches",
        fix="Give each rank the same number: drop_last=True with a DistributedSampler, a length that the "
        "ranks divide, or a fixed number of steps",
        ranks=ranks_of(exited),
    )


def _other_phase(views: Sequence[RankView]) -> Hang | None:
    """Some ranks evaluate or generate and the others train on: their collectives do not match."""
    phases = {view.rank: view.waits_in.phase for view in views if view.waits_in is not None}
    for phase, (words, _) in WITHOUT_TRAINING.items():
        lone = [view for view in views if phases.get(view.rank) == phase]
        others = [view for view in views if phases.get(view.rank) in TRAINING_PHASES]
        if lone and others:
            what = (
                f"{names(lone)} {words if len(lone) == 1 else words[:-1]} while {names(others)} "
                f"{verb(others, 'trains', 'train')} on{they_wait(views, lone)}"
            )
            return on_some_ranks(phase, lone, what)
    return None


def _saving(views: Sequence[RankView]) -> Frame | None:
    for view in views:
        for frame in reversed(view.frames):
            if frame.function in _SAVES:
                return frame
        if view.waits_in is not None and view.waits_in.phase == "save":
            return view.script_frame or Frame("", 0, "a save")
    return None


def _saves_alone(views: Sequence[RankView]) -> Hang | None:
    saving = [view for view in views if _saving([view]) is not None]
    others = [view for view in views if view not in saving]
    frame = _saving(saving)
    if frame is None or not others or not waiting_in(saving):
        return None
    return _lone_save(saving, frame, others)


def _lone_save(saving: Sequence[RankView], frame: Frame, others: Sequence[RankView]) -> Hang:
    script = saving[0].script_frame
    location = f" at {script}" if script is not None else ""
    call = saving[0].waits_in
    return Hang(
        kind="save_on_some_ranks",
        what=f"{names(saving)} {verb(saving, 'saves', 'save')} alone ({frame.function}{location}) and "
        f"{verb(saving, 'waits', 'wait')} in {call} for {names(others)}, which {_doing(others)}",
        fix=f"Call {frame.function} on every rank: not below `if rank == 0:` (each file is written once)",
        ranks=ranks_of(saving),
    )


def _doing(views: Sequence[RankView]) -> str:
    """What the first of them does, in words for all."""
    view = views[0]
    if view.exited:
        return verb(views, "has ended", "have ended")
    call, location = view.waits_in, at(view)
    if call is None:
        return f"{verb(views, 'is', 'are')} elsewhere{location}"
    return f"{verb(views, 'waits', 'wait')} in {call}{location}"


# ---- a module that some ranks ran and others did not


def _skipped_module(views: Sequence[RankView]) -> Hang | None:
    """Under ZeRO-3 each module's forward gathers its weights from all ranks."""
    for one in views:
        for view in views:
            if not one.visited or one.forward != view.forward or not view.visited:
                continue
            missing = _skipped(one.visited, view.visited)
            if not missing or one.exited or view.exited:
                continue
            runners = [v for v in views if v.forward == one.forward and missing[0] in v.visited]
            skipped = [v for v in views if v.forward == one.forward and not _skipped(view.visited, v.visited)
                       and missing[0] not in v.visited]  # fmt: skip
            step = one.forward[0] + 1
            module = missing[0] + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            expert = any(word in missing[0].lower() for word in ("expert", "moe"))
            why = "no token went there" if expert else "its batch has no input for it (text only?)"
            return Hang(
                kind="module_skipped",
                what=f"{names(skipped)} skipped `{module}` in step {step} ({why}), which "
                f"{names(runners)} ran: ZeRO-3 gathers its weights from all ranks"
                + they_wait(views, skipped),
                fix=f"Give each batch an input for it, or make its parent a leaf module "
                f"(deepspeed.utils.set_z3_leaf_modules), or run `{missing[0]}` on a dummy input times 0",
                ranks=ranks_of(skipped),
            )
    return None


def _skipped(full: Sequence[str], partial: Sequence[str]) -> list[str]:
    """The topmost modules of ``full`` that ``partial`` has passed without running them."""
    visited = set(partial)
    later = [index for index, name in enumerate(full) if name in visited]
    if not later:
        return []
    missing = [name for name in full[: later[-1]] if name not in visited]
    return [name for name in missing if not any(name.startswith(parent + ".") for parent in missing)]


# ---- a rank that is in no collective


_Test = Callable[[RankView], str | None]


def _in(kind: str, *ends: str) -> _Test:
    return lambda view: kind if view.inside(*ends) is not None else None


def _by_text(view: RankView) -> str | None:
    """The innermost line waits below Python: a lock's frames do not show."""
    frame = view.frames[0] if view.frames else None
    if frame is None:
        return None
    text = frame.text.lower()
    if "acquire(" in text or ("with " in text and "lock" in text):
        return "lock"
    return "sleep" if "sleep(" in text else None


_KERNEL = (
    ("lock", ("futex", "locks_lock", "flock")),
    ("sleep", ("hrtimer_nanosleep", "do_nanosleep")),
    ("child_process", ("do_wait", "pipe_read", "anon_pipe_read")),
    ("input_output", ("wait_woken", "sk_wait", "poll_schedule", "ep_poll", "do_sys_poll", "do_select",
                      "inet_", "unix_")),
    ("storage", ("io_schedule", "folio_wait", "nfs", "rpc_wait", "fuse", "request_wait")),
)  # fmt: skip


def _by_kernel(view: RankView) -> str | None:
    """What the kernel has it wait for, where no line of Python says it."""
    kernel = view.kernel or ""
    return next((kind for kind, starts in _KERNEL if kernel.startswith(starts)), None)


_TESTS: tuple[_Test, ...] = (
    _in("data_loader", "torch/utils/data/dataloader.py"),
    _in("compilation", "torch/utils/file_baton.py", "torch/utils/cpp_extension.py"),
    _in("compilation", "torch/_inductor/compile_fx.py", "triton/compiler/compiler.py"),
    _in("child_process", "subprocess.py", "multiprocessing/popen_fork.py"),
    _in("lock", "threading.py", "queue.py", "concurrent/futures/_base.py", "filelock/_api.py"),
    _in("input_output", "socket.py", "ssl.py", "selectors.py"),
    _by_text,
    _by_kernel,
)
_WORDS = {
    "data_loader": ("waits for its next batch from the data loader",
                    "Look at its dataset and workers: a worker that blocks or died (memory, a download); "
                    "give DataLoader(timeout=…) to get an error"),
    "compilation": ("builds or waits for a compiled operator",
                    "Remove a stale lock of an earlier build (zerokit doctor names it), or build ahead"),
    "child_process": ("waits for a process that it started",
                      "End that process, or start it with a timeout"),
    "lock": ("waits for a lock or another thread of the script",
             "That lock is held by a thread that waits itself: release it before waiting, or give a timeout"),
    "input_output": ("waits for the network (a download, a logger, a server)",
                     "Give that call a timeout, or run offline (HF_HUB_OFFLINE=1, WANDB_MODE=offline)"),
    "storage": ("waits for storage",
                "Look at that file system: a network mount that does not answer, a full or failing disk"),
    "sleep": ("sleeps", "Find out why it waits there"),
    "elsewhere": ("does nothing new, and is in no collective", "Look at its stack: what does it wait for?"),
}  # fmt: skip


def _not_there(views: Sequence[RankView]) -> Hang | None:
    """The ranks that the others wait for, where they are in no collective themselves."""
    absent = [view for view in views if view.waits_in is None and not view.exited and view.frames]
    if not absent:
        return None
    view = absent[0]
    absent = [candidate for candidate in absent if candidate.script_frame == view.script_frame]
    kind = next((kind for test in _TESTS if (kind := test(view)) is not None), "elsewhere")
    words, fix = _WORDS[kind]
    script, inner = view.script_frame, view.frames[0]
    location = f" at {script}" if script is not None else f" at {inner}"
    quote = f" (`{script.text}`)" if script is not None and script.text else ""
    subject = names(absent) if len(absent) == 1 else f"each of {names(absent)}"
    if not view.recorded and kind == "elsewhere":
        words += ", with Python's interpreter locked"
    if kind == "elsewhere" and view.native:
        words += f", in {' < '.join(view.native[:3])}"
    threads = [f"{name} at {frame}" for name, frame in view.threads if not name.startswith("zerokit")]
    also = f"; its other threads: {', '.join(threads[:4])}" if kind == "lock" and threads else ""
    return Hang(
        kind=kind,
        what=f"{subject} {words}{location}{quote}{also}{they_wait(views, absent)}",
        fix=fix,
        ranks=ranks_of(absent),
    )
