"""The collectives that this rank entered, for the day on which it hangs in one.

Wrapped are torch's own functions (torch.distributed.distributed_c10d, which DeepSpeed and accelerate call
too): a call costs a tuple's worth of work, and is formatted only where somebody asks: when the supervisor
finds the run without progress, when this rank was quiet for a while, and with its last line. Under ZeRO-3
each call knows the module whose weights were being fetched. Collectives that C++ starts by itself (DDP's
buckets, compiled graphs) are in PyTorch's own record (:mod:`zerokit.launcher.rank.flight_recorder`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from zerokit.launcher.rank import flight_recorder
from zerokit.launcher.rank.movement import kernel_wait
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank_file import Record

RING = 512
"""Calls that are remembered."""
QUIET_SECONDS = 5.0
"""A rank that did nothing new for so long writes its record without being asked."""
_MOST_WRITTEN = 192
_MOST_FRAMES = 64
_LOOKS, _BETWEEN_LOOKS_SECONDS = 10, 0.02  # at what the main thread waits in
_VISITS = 4096  # modules of a ZeRO-3 model that were run last: some forwards of a large one
_COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
    "_all_gather_base", "all_gather_coalesced", "all_gather_object", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all_single", "all_to_all", "barrier",
    "monitored_barrier", "broadcast_object_list", "gather_object", "scatter_object_list", "send", "recv",
    "init_process_group", "new_group", "destroy_process_group",
)  # fmt: skip
_CHANGE_GROUPS = frozenset({"init_process_group", "new_group", "destroy_process_group"})
_TENSORS = ("input_tensor", "input", "tensor")  # the one that must be alike on all ranks
_WORLD = "world"
_OURS = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_MODULE_NAMES = ("current_submodule", "sub_module", "self", "module")  # locals that hold one, in this order


class Calls:
    """A ring of the last calls, and how many each group has had."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._numbers = itertools.count(1)
        self._ring: list[list[Any] | None] = [None] * RING
        self._counts: dict[str, int] = {}
        self._ranks: dict[str, list[int]] = {}
        self._inside: set[int] = set()  # threads; a threading.local costs twice as much
        self._world = _WORLD
        self._group_names: dict[int, str] = {}  # by id: to ask a group itself costs as much as all the rest
        self._module: tuple[int, bool] | None = None
        self._visits: deque[tuple[int, bool, int, int]] = deque(maxlen=_VISITS)
        self._written = 0
        self._last = 0
        self.engines: Callable[[], Iterable[Any]] = tuple

    # ---- while it runs

    def hook(self, module: ModuleType) -> None:
        """Wrap the functions of torch.distributed.distributed_c10d, and have PyTorch record as well."""
        with contextlib.suppress(Exception):
            version = str(sys.modules["torch"].__version__)
            flight_recorder.switch_on(self._probe.run_dir, version, os.environ)
        for name in _COLLECTIVES:
            original = getattr(module, name, None)
            if inspect.isfunction(original):
                setattr(module, name, self._recorded(original, module))

    def hook_zero3(self, module: ModuleType) -> None:
        """Know the module whose weights DeepSpeed fetches (0.19.8, partitioned_param_coordinator.py:310)."""
        owner, probe = module.PartitionedParameterCoordinator, self._probe
        original = owner.fetch_sub_module
        clock, waited, visit = time.perf_counter, probe.waits.seconds, self._visits.append

        @functools.wraps(original)
        def fetch(coordinator: Any, current_submodule: Any, forward: bool) -> Any:
            number, phase = current_submodule.ds_id, probe.phase
            self._module = (number, forward)
            visit((number, forward, probe.steps, probe.micro_steps))
            began = clock()
            result = original(coordinator, current_submodule, forward)
            waited[phase] = waited.get(phase, 0.0) + clock() - began
            self._module = None
            return result

        owner.fetch_sub_module = fetch

    def _recorded(self, original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
        names = list(inspect.signature(original).parameters)
        group_at = names.index("group") if "group" in names else len(names)
        tensor_name = next((name for name in _TENSORS if name in names), "")
        tensor_at = names.index(tensor_name) if tensor_name else len(names)
        operation = original.__name__
        inside, thread, probe, ring, numbers = (
            self._inside,
            threading.get_ident,
            self._probe,
            self._ring,
            self._numbers,
        )
        counts, group_names = self._counts, self._group_names
        clock, waited = time.perf_counter, probe.waits.seconds
        starts, changes_groups = operation == "init_process_group", operation in _CHANGE_GROUPS

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            me = thread()
            if me in inside:  # objects travel as tensors: one call, not three
                return original(*args, **kwargs)
            group = args[group_at] if len(args) > group_at else kwargs.get("group")
            name = self._world if group is None else group_names.get(id(group))
            if name is None:
                name = group_names[id(group)] = getattr(group, "group_name", "?")
            count = counts.get(name, 0) + 1
            counts[name] = count
            if count == 1:
                self._learn(name, group, module)
            tensor = args[tensor_at] if len(args) > tensor_at else kwargs.get(tensor_name)
            number, phase = next(numbers), probe.phase
            shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
            entry = [number, count, operation, name, shape, dtype, self._module, probe.steps, phase, True]
            ring[number % RING] = entry
            self._last = number
            inside.add(me)
            began = clock()
            try:
                return original(*args, **kwargs)
            finally:
                if self._module is None:  # a fetch of weights is measured as a whole
                    waited[phase] = waited.get(phase, 0.0) + clock() - began
                inside.discard(me)
                entry[9] = False
                if changes_groups:
                    group_names.clear()
                if starts:
                    self._begin(module)

        return recorded

    def _begin(self, module: ModuleType) -> None:
        with contextlib.suppress(Exception):
            self._world = module.GroupMember.WORLD.group_name
            self._learn(self._world, None, module)

    def _learn(self, name: str, group: Any, module: ModuleType) -> None:
        with contextlib.suppress(Exception):  # before the first group there are none
            self._ranks[name] = list(module.get_process_group_ranks(group))

    # ---- when somebody asks

    def news(self, idle_seconds: float) -> Record | None:
        """The record, where this rank has been quiet for long and it is not written yet."""
        if idle_seconds < QUIET_SECONDS or self._written == self._last:
            return None
        return self.record()

    def record(self) -> Record:
        """What is known now, as a line of the rank's file; costs milliseconds."""
        with self._probe.movement.own_reading():  # of the lines of source that it quotes
            return self._record()

    def _record(self) -> Record:
        self._written = self._last
        probe = self._probe
        names = self._module_names()
        frames = _frames(probe.main_thread)
        entries = sorted((e for e in list(self._ring) if e is not None), key=lambda e: int(e[0]))
        return {
            "type": "calls", "rank": probe.identity.rank, "pid": probe.identity.pid, "time": time.time(),
            "groups": {n: {"ranks": self._ranks.get(n, []), "calls": c} for n, c in self._counts.items()},
            "calls": [_written(entry, names) for entry in entries[-_MOST_WRITTEN:]],
            "frames": [_place(frame) for frame in frames],
            "module": _module_of(frames, names),
            **self._last_forward(names),
            "threads": _others(probe.main_thread),
            "kernel": self._kernel_wait(),
            "ending": probe.ending,
        }  # fmt: skip

    def _kernel_wait(self) -> str:
        """Asked by a signal, the main thread leaves its wait for a moment: look until it is back there."""
        if threading.get_ident() == self._probe.main_thread:
            return ""
        for _ in range(_LOOKS):
            if found := kernel_wait():
                return found
            time.sleep(_BETWEEN_LOOKS_SECONDS)
        return ""

    def _last_forward(self, names: dict[int, str]) -> Record:
        """The modules that ran in the forward that began last, in order, and which forward that was."""
        forwards = [visit for visit in list(self._visits) if visit[1]]
        if not forwards:
            return {}
        which = forwards[-1][2:]
        visited = dict.fromkeys(names.get(visit[0], "") for visit in forwards if visit[2:] == which)
        return {"visited": [name for name in visited if name], "forward": list(which)}

    def _module_names(self) -> dict[int, str]:
        """Name of each module by DeepSpeed's id and by Python's."""
        found: dict[int, str] = {}
        for engine in self.engines():
            with contextlib.suppress(Exception):
                for name, module in engine.module.named_modules():
                    found[id(module)] = name
                    number = getattr(module, "ds_id", None)
                    if number is not None:
                        found[number] = name
        return found


def _written(entry: list[Any], names: dict[int, str]) -> Record:
    number, count, operation, group, shape, dtype, module, step, phase, inside = entry
    record: Record = {"number": number, "count": count, "operation": operation, "group": group,
                      "step": step, "phase": phase}  # fmt: skip
    if shape is not None:
        record |= {"shape": [int(size) for size in shape], "dtype": str(dtype).removeprefix("torch.")}
    if module is not None:
        record |= {"module": names.get(module[0], ""), "module_id": module[0], "forward": bool(module[1])}
    if inside:
        record["inside"] = True
    return record


def _frames(thread: int) -> list[FrameType]:
    frame = sys._current_frames().get(thread)
    found: list[FrameType] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        if not frame.f_code.co_filename.startswith(_OURS):
            found.append(frame)
        frame = frame.f_back
    return found


def _place(frame: FrameType) -> list[Any]:
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()[:160]
    return [code.co_filename, frame.f_lineno, code.co_name, text]


def _module_of(frames: list[FrameType], names: dict[int, str]) -> str | None:
    """The innermost module of the engine's model that is at work in these frames."""
    for frame in frames:
        with contextlib.suppress(Exception):
            local = frame.f_locals
            for key in _MODULE_NAMES:
                name = names.get(id(local[key])) if key in local else None
                if name:
                    return name
    return None


def _others(main: int) -> list[Record]:
    """Where the other Python threads are: of each its name and its innermost frames."""
    known = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        {"name": known.get(ident, "?"), "frames": [_place(frame) for frame in _frames(ident)[:6]]}
        for ident in list(sys._current_frames())
        if ident not in (main, threading.get_ident())
    ][:16]
