"""Why a run makes no progress: all ranks compared, the first difference, its likely cause and the fix.

Ranks of a job enter the same collectives in the same order. Where one does not, the others wait for ever.
So the ranks' records (:mod:`zerokit.launcher.rank.calls`) are laid beside each other, group by group, and
the ranks that are in no collective at all are looked at first: the others wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.launcher.verdict.rank_view import Call, Place, RankView

_SAVES = ("save_checkpoint", "save_16bit_model", "save_fp16_model", "_zero3_consolidated_16bit_state_dict",
          "save_pretrained", "save_model", "save_state", "get_state_dict", "_save_checkpoint")  # fmt: skip
_ALIKE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
                    "_all_gather_base", "reduce_scatter_tensor", "_reduce_scatter_base"})  # fmt: skip
_STARTS = frozenset({"init_process_group", "new_group"})
_ONE_SIDED = frozenset({"send", "recv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """``kind`` is for programs; ``what`` names ranks, collective and place; ``fix`` what to do."""

    kind: str
    what: str
    fix: str
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"

    def to_dict(self) -> dict[str, Any]:
        """The report's ``hang``."""
        return {"kind": self.kind, "what": self.what, "fix": self.fix, "ranks": list(self.ranks)}


def explain(views: Sequence[RankView]) -> Cause | None:
    """The likely cause; None where the records do not tell."""
    for find in (
        _stopped,
        _left,
        _saves_alone,
        _skipped_module,
        _not_there,
        _first_difference,
        _groups,
        _network,
    ):
        cause = find(views)
        if cause is not None:
            return cause
    return None


def _names(views: Sequence[RankView]) -> str:
    ranks = ", ".join(str(view.rank) for view in views[:8]) + (" …" if len(views) > 8 else "")
    return f"rank{'s' if len(views) > 1 else ''} {ranks}"


def _verb(views: Sequence[RankView], one: str, many: str) -> str:
    return one if len(views) == 1 else many


def _ranks(views: Sequence[RankView]) -> tuple[int, ...]:
    return tuple(view.rank for view in views)


def _waiting(views: Sequence[RankView]) -> list[RankView]:
    return [view for view in views if view.waits_in is not None]


def _they_wait(views: Sequence[RankView], culprits: Sequence[RankView]) -> str:
    """``; rank 0 waits in all_reduce of [4] float32 (step 5, train.py:31)``: the others, and where."""
    waiting = [view for view in _waiting(views) if view not in culprits]
    call = waiting[0].waits_in if waiting else None
    if call is None:
        return ""
    alike = [view for view in waiting if str(view.waits_in) == str(call)]
    return (
        f"; {_names(alike)} {_verb(alike, 'waits', 'wait')} in {call} (step {call.step + 1}{_at(alike[0])})"
    )


def _at(view: RankView) -> str:
    place = view.script_place
    return "" if place is None else f", {place}"


def _stopped(views: Sequence[RankView]) -> Cause | None:
    found = [view for view in views if view.stopped]
    if not found:
        return None
    return Cause(
        kind="stopped",
        what=f"{_names(found)} {_verb(found, 'is', 'are')} stopped (SIGSTOP, a debugger or a suspended job)"
        + _they_wait(views, found),
        fix="Continue it with `kill -CONT`, or find who stops it",
        ranks=_ranks(found),
    )


def _left(views: Sequence[RankView]) -> Cause | None:
    """Ranks that ended, or came to their script's end, while others wait in a collective."""
    left = [view for view in views if view.gone or (view.ending and view.waits_in is None)]
    left += [view for view in views if view.ending and view not in left]
    waiting = [view for view in _waiting(views) if view not in left]
    if not left or not waiting:
        return None
    if (saving := _saving(waiting)) is not None:
        return _alone(waiting, saving, left)
    call = waiting[0].waits_in
    assert call is not None
    phase = call.phase if call.phase in ("eval", "generate") else None
    if phase is not None:
        return Cause(
            kind=f"{phase}_on_some_ranks",
            what=f"{_names(left)} left the script{_they_wait(views, left)}, in {phase}",
            fix="Let every rank evaluate and generate: under ZeRO-3 each forward gathers weights from all",
            ranks=_ranks(left),
        )
    return Cause(
        kind="uneven_batches",
        what=f"{_names(left)} left the training loop after step {left[0].steps}{_they_wait(views, left)}: "
        "the ranks have different numbers of batches",
        fix="Give each rank the same number: drop_last=True with a DistributedSampler, a length that the "
        "ranks divide, or a fixed number of steps",
        ranks=_ranks(left),
    )


def _saving(views: Sequence[RankView]) -> Place | None:
    for view in views:
        for place in reversed(view.frames):
            if place.function in _SAVES:
                return place
        if view.waits_in is not None and view.waits_in.phase == "save":
            return view.script_place or Place("", 0, "a save")
    return None


def _saves_alone(views: Sequence[RankView]) -> Cause | None:
    saving = [view for view in views if _saving([view]) is not None]
    others = [view for view in views if view not in saving]
    if not saving or not others or not _waiting(saving):
        return None
    place = _saving(saving)
    assert place is not None
    return _alone(saving, place, others)


def _alone(saving: Sequence[RankView], place: Place, others: Sequence[RankView]) -> Cause:
    script = saving[0].script_place
    where = f" at {script}" if script is not None else ""
    call = saving[0].waits_in
    return Cause(
        kind="save_on_some_ranks",
        what=f"{_names(saving)} {_verb(saving, 'saves', 'save')} alone ({place.function}{where}) and "
        f"{_verb(saving, 'waits', 'wait')} in {call} for {_names(others)}, which {_doing(others[0])}",
        fix=f"Call {place.function} on every rank: not below `if rank == 0:` (each file is written once)",
        ranks=_ranks(saving),
    )


def _doing(view: RankView) -> str:
    if view.gone:
        return "has ended"
    call = view.waits_in
    where = _at(view)
    return f"waits in {call}{where}" if call is not None else f"is elsewhere{where}"


# ---- a module that some ranks ran and others did not


def _skipped_module(views: Sequence[RankView]) -> Cause | None:
    """Under ZeRO-3 each module's forward gathers its weights from all ranks."""
    for one in views:
        for other in views:
            if not one.visited or one.forward != other.forward or not other.visited:
                continue
            missing = _skipped(one.visited, other.visited)
            if not missing or one.gone or other.gone:
                continue
            ran = [v for v in views if v.forward == one.forward and missing[0] in v.visited]
            skipped = [v for v in views if v.forward == one.forward and not _skipped(other.visited, v.visited)
                       and missing[0] not in v.visited]  # fmt: skip
            step = one.forward[0] + 1
            module = missing[0] + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            expert = any(word in missing[0].lower() for word in ("expert", "moe"))
            why = "no token went there" if expert else "its batch has no input for it (text only?)"
            return Cause(
                kind="module_skipped",
                what=f"{_names(skipped)} skipped `{module}` in step {step} ({why}), which "
                f"{_names(ran)} ran: ZeRO-3 gathers its weights from all ranks" + _they_wait(views, skipped),
                fix=f"Give each batch an input for it, or make its parent a leaf module "
                f"(deepspeed.utils.set_z3_leaf_modules), or run `{missing[0]}` on a dummy input times 0",
                ranks=_ranks(skipped),
            )
    return None


def _skipped(full: Sequence[str], partial: Sequence[str]) -> list[str]:
    """The topmost modules of ``full`` that ``partial`` has passed without running them."""
    ran = set(partial)
    later = [index for index, name in enumerate(full) if name in ran]
    if not later:
        return []
    missing = [name for name in full[: later[-1]] if name not in ran]
    return [name for name in missing if not any(name.startswith(other + ".") for other in missing)]


# ---- a rank that is in no collective


_Test = Callable[[RankView], str | None]


def _in(kind: str, *ends: str) -> _Test:
    return lambda view: kind if view.inside(*ends) is not None else None


def _by_text(view: RankView) -> str | None:
    """The innermost line waits below Python: a lock's frames do not show."""
    place = view.frames[0] if view.frames else None
    if place is None:
        return None
    text = place.text.lower()
    if "acquire(" in text or ("with " in text and "lock" in text):
        return "lock"
    return "sleep" if "sleep(" in text else None


_TESTS: tuple[_Test, ...] = (
    _in("data_loader", "torch/utils/data/dataloader.py"),
    _in("compilation", "torch/utils/file_baton.py", "torch/utils/cpp_extension.py"),
    _in("compilation", "torch/_inductor/compile_fx.py", "triton/compiler/compiler.py"),
    _in("child_process", "subprocess.py", "multiprocessing/popen_fork.py"),
    _in("lock", "threading.py", "queue.py", "concurrent/futures/_base.py", "filelock/_api.py"),
    _in("input_output", "socket.py", "ssl.py", "selectors.py"),
    _by_text,
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
    "sleep": ("sleeps", "Find out why it waits there"),
    "elsewhere": ("does nothing new, and is in no collective", "Look at its stack: what does it wait for?"),
}  # fmt: skip


def _not_there(views: Sequence[RankView]) -> Cause | None:
    """The ranks that the others wait for, where they are in no collective themselves."""
    absent = [view for view in views if view.waits_in is None and not view.gone and view.frames]
    if not absent:
        return None
    view = absent[0]
    absent = [each for each in absent if each.script_place == view.script_place]
    kind = next((kind for test in _TESTS if (kind := test(view)) is not None), "elsewhere")
    words, fix = _WORDS[kind]
    script, inner = view.script_place, view.frames[0]
    where = f" at {script}" if script is not None else f" at {inner}"
    quote = f" (`{script.text}`)" if script is not None and script.text else ""
    who = _names(absent) if len(absent) == 1 else f"each of {_names(absent)}"
    if not view.recorded:
        words += ", with Python's interpreter locked"
    others = [f"{name} at {place}" for name, place in view.threads if not name.startswith("zerokit")]
    also = f"; its other threads: {', '.join(others[:4])}" if kind == "lock" and others else ""
    return Cause(
        kind=kind,
        what=f"{who} {words}{where}{quote}{also}{_they_wait(views, absent)}",
        fix=fix,
        ranks=_ranks(absent),
    )


# ---- all wait in collectives


def _first_difference(views: Sequence[RankView]) -> Cause | None:
    """In each group, the first call that is not the same on all of its ranks."""
    reference = views[0]
    for group in dict.fromkeys(call.group for call in reference.calls):
        if len(reference.groups.get(group, ())) == 1:
            continue
        mine = {call.count: call for call in reference.calls if call.group == group}
        for other in views[1:]:
            theirs = {call.count: call for call in other.calls if call.group == group}
            for count in sorted(mine.keys() & theirs.keys()):
                cause = _differ(reference, mine[count], other, theirs[count])
                if cause is not None:
                    return cause
    return None


def _differ(one: RankView, a: Call, other: RankView, b: Call) -> Cause | None:
    if a.operation in _ONE_SIDED or b.operation in _ONE_SIDED:
        return None
    head = f"collective {a.count} of the group: rank {one.rank} entered {a} (step {a.step + 1}{_at(one)}), " \
           f"rank {other.rank} {b} (step {b.step + 1}{_at(other)})"  # fmt: skip
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


def _groups(views: Sequence[RankView]) -> Cause | None:
    waiting = _waiting(views)
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
        parts.append(f"{_names(members)} in {call} of group {group} (ranks {ranks}{_at(members[0])})")
    return Cause(
        kind="wrong_group",
        what="the ranks wait in different groups: " + "; ".join(parts),
        fix="Pass the same group on every rank, and call new_group in the same order on all of them",
        ranks=_ranks(waiting),
    )


def _network(views: Sequence[RankView]) -> Cause | None:
    """All ranks entered the same collective, and it does not end."""
    waiting = _waiting(views)
    if len(waiting) < len(views):
        return None
    call = waiting[0].waits_in
    assert call is not None
    starting = call.operation in _STARTS
    what = f"all ranks wait in the same {call} (step {call.step + 1}{_at(waiting[0])})"
    return Cause(
        kind="network",
        what=what + (", where they connect" if starting else "") + ": no data moves between them",
        fix="Look at the network between the nodes: an interface that is down, a firewall, a wrong interface "
        "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); NCCL_DEBUG=INFO tells which one is used",
        ranks=_ranks(waiting),
    )
