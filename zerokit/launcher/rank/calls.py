"""The collectives that this rank entered, for the day on which it hangs in one.

Wrapped are torch's own functions (torch.distributed.distributed_c10d, which DeepSpeed and accelerate call
too): a call leaves a list of what it was, a fetch of weights two items of a queue. They are decoded only
where somebody asks: when the supervisor finds the run without progress, when this rank was quiet for a while,
and with its last line. Under ZeRO-3 each call knows the module whose weights were being fetched. Collectives
that C++ starts by itself (DDP's buckets, compiled graphs) are in PyTorch's own record
(its flight recorder). What it costs: ``python -m benchmarks.recording_cost``.

On GPUs a collective is only queued by the host: the one that hangs may be many calls back. PyTorch keeps
a ring of them with their state (torch 2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp), since 2.9 for
Gloo too. It is read as JSON: its other form is a pickle, and those can run code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import linecache
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from inspect import Parameter
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from zerokit.instrument.frames import frames_of_threads
from zerokit.instrument.phases import in_place_of
from zerokit.launcher.rank.movement import kernel_wait
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank_file import Record

_SOURCE = """
def {name}({parameters}):
    if inside and thread() in inside:  # objects travel as tensors: one call, not three
        return original({arguments})
    its = by_id.get(id({group})) or find({group})
    its.count = count = its.count + 1
    fetched = visits[-1]
    entry = [count, {name!r}, its.name, getattr({tensor}, "shape", None), getattr({tensor}, "dtype", None),
             fetched, probe.position, probe.phase, True]
    remember(entry)
    if fetched.__class__ is int:  # in a fetch of weights, which is measured as a whole
        try:
            return original({arguments})
        finally:
            entry[8] = False
    began = clock()
    try:
        return original({arguments})
    finally:
        entry[8] = False
        waited[0] += clock() - began
"""
_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
ENTRY = ("count", "operation", "group", "shape", "dtype", "fetched", "position", "phase", "under_way")
"""What a call leaves."""
_TENSORS = ("input_tensor", "input", "tensor")  # the one that must be alike on all ranks


def recording(original: Callable[..., Any], operation: str, recorder: dict[str, Any]) -> Callable[..., Any]:
    """``original``, each call of it recorded as ``operation``. ``recorder``: what the source above uses,
    ``inside`` (threads within a call that makes others), ``thread``, ``by_id`` and ``find`` (a group, by the
    object's id and by the object), ``visits`` (its last is a number during a fetch of weights), ``probe``,
    ``remember`` (takes the entry), ``clock`` and ``waited`` (one number, to which seconds are added).

    Raises:
        ValueError: its parameters cannot be told.
    """
    parameters = inspect.signature(original).parameters
    values = dict(recorder, original=original)
    declared: list[str] = []
    passed: list[str] = []
    for name, parameter in parameters.items():
        star = _STARS.get(parameter.kind.name, "")
        default = ""
        if parameter.default is not Parameter.empty:
            default = f"=default_of_{name}"
            values[f"default_of_{name}"] = parameter.default
        has_star = any(one.startswith("*") for one in declared)
        if parameter.kind is Parameter.KEYWORD_ONLY and not has_star:
            declared.append("*")
        declared.append(f"{star}{name}{default}")
        passed.append(f"{name}={name}" if parameter.kind is Parameter.KEYWORD_ONLY else f"{star}{name}")
    source = _SOURCE.format(
        name=operation,
        parameters=", ".join(declared),
        arguments=", ".join(passed),
        group="group" if "group" in parameters else "None",
        tensor=next((name for name in _TENSORS if name in parameters), "None"),
    )
    exec(compile(source, __file__, "exec"), values)  # noqa: S102 - the text is above, the names are PyTorch's
    wrapper: Callable[..., Any] = functools.wraps(original)(values[operation])
    return wrapper


ENTRIES = 2000
"""That PyTorch keeps, where the user says nothing; some hundred bytes each."""
_MOST_RECORDED = 96  # of each group, from shortly before the first that has not ended
_BEFORE = 16
_RENAMED_IN = (2, 9)  # TORCH_NCCL_TRACE_BUFFER_SIZE became TORCH_FR_BUFFER_SIZE
_SIZE = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
_FILE = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # of NCCL, of the other backends
_DTYPES = {"float": "float32", "half": "float16", "double": "float64", "long": "int64", "int": "int32",
           "byte": "uint8", "char": "int8", "short": "int16"}  # fmt: skip
_ONE_SIDED = re.compile(r"(send|recv)\b")


def switch_on(run_dir: Path, torch_version: str, environment: MutableMapping[str, str]) -> None:
    """Have PyTorch record, before the first process group is made; what the user set is kept. What PyTorch
    writes when its own watchdog ends the process goes into the run folder, not to ``/tmp``."""
    numbers = re.match(r"(\d+)\.(\d+)", torch_version)
    new = numbers is None or (int(numbers[1]), int(numbers[2])) >= _RENAMED_IN
    for names, value in ((_SIZE, str(ENTRIES)), (_FILE, str(run_dir / "flight-recorder-"))):
        if not any(name in environment for name in names):
            environment[names[new]] = value


def flight_record() -> Record | None:
    """The groups' last collectives as a line of the rank's file; None where PyTorch has none."""
    entries: dict[str, list[Record]] = {}
    module = sys.modules.get("torch._C._distributed_c10d")
    for name in _DUMPS:
        dump = getattr(module, name, None)
        if dump is None:
            continue
        with contextlib.suppress(Exception):
            for item in json.loads(dump()).get("entries", []):
                entry = _entry(item)
                entries.setdefault(entry["group"], []).append(entry)
    if not entries:
        return None
    calls: list[Record] = []
    for group in entries.values():  # of each the part that tells most; from_end counts those queued after
        for number, entry in enumerate(group):
            entry["from_end"] = len(group) - 1 - number
        pending = next((n for n, entry in enumerate(group) if entry.get("pending")), len(group))
        begin = max(0, min(pending - _BEFORE, len(group) - _MOST_RECORDED))
        calls += group[begin : begin + _MOST_RECORDED]
    return {"type": "flight", "calls": calls}


def _entry(item: dict[str, Any]) -> Record:
    operation = str(item["profiling_name"]).partition(":")[2] or str(item["profiling_name"])
    one_sided = bool(item.get("is_p2p")) or _ONE_SIDED.match(operation) is not None
    sizes, dtypes = item.get("input_sizes") or [], item.get("input_dtypes") or []
    record: Record = {
        "count": item["p2p_seq_id" if one_sided else "collective_seq_id"],
        "operation": operation.partition(" ")[0],
        "group": str(item["process_group"][0]),
    }
    if len(sizes) == len(dtypes) == 1:
        dtype = str(dtypes[0]).lower()
        record |= {"shape": sizes[0], "dtype": _DTYPES.get(dtype, dtype)}
    if not item.get("retired") and item.get("state") != "completed":
        record["pending"] = True
    return record


RING = 512
"""Calls that are remembered."""
QUIET_SECONDS = 5.0
"""A rank that did nothing new for so long writes its record without being asked."""
_MOST_WRITTEN = 192
_MOST_FRAMES = 64
_LOOKS, _BETWEEN_LOOKS_SECONDS = 10, 0.02  # at what the main thread waits in
_VISITS = 8192  # two for each module of a ZeRO-3 model that was run last: some forwards of a large one
_COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_coalesced",
    "all_gather_object", "gather", "scatter", "reduce_scatter", "all_to_all_single", "all_to_all", "barrier",
    "monitored_barrier", "broadcast_object_list", "gather_object", "scatter_object_list", "send", "recv",
    "init_process_group", "new_group", "destroy_process_group",
)  # fmt: skip
_RENAMED = (  # PyTorch 2.13 has them by other names, and these call those
    ("all_gather_single", "all_gather_into_tensor", "_all_gather_base"),
    ("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base"),
)
_ALONE = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all_single", "all_to_all", "barrier", "send", "recv",
})  # fmt: skip
"""Those that call no other of them."""
_CHANGE_GROUPS = frozenset({"init_process_group", "new_group", "destroy_process_group"})
_WORLD = "world"
_OURS = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_MODULE_NAMES = ("current_submodule", "sub_module", "self", "module")  # locals that hold one, in this order


class _Group:
    """A process group: how many calls it has had."""

    __slots__ = ("count", "name", "ranks")

    def __init__(self, name: str, ranks: list[int]) -> None:
        self.name, self.ranks, self.count = name, ranks, 0


class Calls:
    """The last calls, and how many each group has had."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._calls: deque[list[Any]] = deque(maxlen=RING)
        self._groups: dict[str, _Group] = {}
        self._by_id: dict[int, _Group] = {}  # to ask a group itself costs more than all the rest
        self._inside: set[int] = set()  # threads, in a call that makes others
        self._world = _WORLD
        # DeepSpeed's number of what is fetched (inverted: backward), and after it where training was
        self._visits: deque[int | tuple[int, int]] = deque([probe.position], maxlen=_VISITS)
        self._call_record = 0
        self.engines: Callable[[], Iterable[Any]] = tuple

    # ---- while it runs

    def hook(self, module: ModuleType) -> None:
        """Wrap the functions of torch.distributed.distributed_c10d, and have PyTorch record as well."""
        with contextlib.suppress(Exception):
            version = str(sys.modules["torch"].__version__)
            switch_on(self._probe.run_dir, version, os.environ)
        recorder = {
            "inside": self._inside, "thread": threading.get_ident, "by_id": self._by_id,
            "find": functools.partial(self._group, module), "visits": self._visits, "probe": self._probe,
            "remember": self._calls.append, "clock": time.perf_counter, "waited": self._probe.waits.running,
        }  # fmt: skip
        callers = []
        for attribute, operation in collectives_of(module).items():
            original = getattr(module, attribute)
            if operation not in _ALONE:
                original = self._making_others(original, operation, module)
            recorded = recording(original, operation, recorder)
            callers.append(recorded.__globals__)
            setattr(module, attribute, recorded)
        probe = self._probe
        if probe.identity.device != "cpu" and probe.identity.world_size > 1:
            probe.waits.gpu.attach(lambda: probe.phase, callers)

    def hook_zero3(self, module: ModuleType) -> None:
        """Know the module whose weights DeepSpeed fetches (0.19.8, partitioned_param_coordinator.py:310)."""
        owner, probe = module.PartitionedParameterCoordinator, self._probe
        original = owner.fetch_sub_module
        clock, waited, visit = time.perf_counter, probe.waits.running, self._visits.append

        @in_place_of(owner, "fetch_sub_module")
        def fetch(coordinator: Any, current_submodule: Any, forward: bool) -> Any:
            number = current_submodule.ds_id
            visit(number if forward else ~number)
            began = clock()
            result = original(coordinator, current_submodule, forward)
            waited[0] += clock() - began
            visit(probe.position)
            return result

    def _making_others(self, original: Callable[..., Any], operation: str, module: ModuleType) -> Any:
        """What it calls of the others is no call of its own."""
        inside, changes_groups = self._inside, operation in _CHANGE_GROUPS

        @functools.wraps(original)
        def making(*args: Any, **kwargs: Any) -> Any:
            me = threading.get_ident()
            outermost = me not in inside
            inside.add(me)
            try:
                return original(*args, **kwargs)
            finally:
                if outermost:
                    inside.discard(me)
                if changes_groups:
                    self._by_id.clear()
                if operation == "init_process_group":
                    with contextlib.suppress(Exception):
                        self._world = module.GroupMember.WORLD.group_name
                        self._group(module, None)

        return making

    def _group(self, module: ModuleType, group: Any) -> _Group:
        name = self._world if group is None else getattr(group, "group_name", "?")
        facts = self._groups.get(name)
        if facts is None:
            ranks: list[int] = []
            with contextlib.suppress(Exception):  # before the first group there are none
                ranks = list(module.get_process_group_ranks(group))
            facts = self._groups[name] = _Group(name, ranks)
        self._by_id[id(group)] = facts
        return facts

    # ---- when somebody asks

    def news(self, idle_seconds: float) -> Record | None:
        """The record, where this rank has been quiet for long and it is not written yet."""
        if idle_seconds < QUIET_SECONDS or self._call_record == self._count():
            return None
        return self.record()

    def _count(self) -> int:
        return sum(group.count for group in list(self._groups.values()))

    def record(self) -> Record:
        """What is known now, as a line of the rank's file; costs milliseconds."""
        with self._probe.movement.own_reading():  # of the lines of source that it quotes
            self._call_record = count = self._count()
            probe = self._probe
            names = self._module_names()
            frames = _frames(probe.main_thread)
            entries = list(self._calls)
            numbered = list(enumerate(entries, start=1 + count - len(entries)))
            groups = list(self._groups.values())
            return {
                "type": "calls", "rank": probe.identity.rank, "pid": probe.identity.pid, "time": time.time(),
                "groups": {group.name: {"ranks": group.ranks, "calls": group.count} for group in groups},
                "calls": [_call_record(number, entry, names) for number, entry in numbered[-_MOST_WRITTEN:]],
                "frames": [_frame_record(frame) for frame in frames],
                "module": _module_of(frames, names),
                **self._last_forward(names),
                "threads": _other_threads(probe.main_thread),
                "kernel": self._kernel_wait(),
                "ending": probe.ending,
            }  # fmt: skip

    def _kernel_wait(self) -> str:
        """Asked by a signal, the main thread leaves its wait for a moment: look until it is back there."""
        if threading.get_ident() == self._probe.main_thread:
            return ""
        for _ in range(_LOOKS):
            if kernel := kernel_wait():
                return kernel
            time.sleep(_BETWEEN_LOOKS_SECONDS)
        return ""

    def _last_forward(self, names: dict[int, str]) -> Record:
        """The modules that ran in the forward that began last, in order, and which forward that was."""
        forwards = [(number, position) for number, position in self._visited() if number >= 0]
        if not forwards:
            return {}
        module = forwards[-1][1]
        visited = dict.fromkeys(names.get(number, "") for number, position in forwards if position == module)
        return {"visited": [name for name in visited if name], "forward": list(module)}

    def _visited(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """What was fetched, in order, and where training was: that is noted after the fetch."""
        under_way: list[int] = []
        for visit in [*self._visits, self._probe.position]:
            if isinstance(visit, int):
                under_way.append(visit)
                continue
            yield from ((number, visit) for number in under_way)
            under_way = []

    def _module_names(self) -> dict[int, str]:
        """Name of each module by DeepSpeed's id and by Python's."""
        names: dict[int, str] = {}
        for engine in self.engines():
            with contextlib.suppress(Exception):
                for name, module in engine.module.named_modules():
                    names[id(module)] = name
                    number = getattr(module, "ds_id", None)
                    if number is not None:
                        names[number] = name
        return names


def collectives_of(module: ModuleType) -> dict[str, str]:
    """The functions of torch.distributed.distributed_c10d that are wrapped, and what each is recorded as."""
    functions = [(name, name) for name in _COLLECTIVES]
    for names in _RENAMED:
        newest = next((name for name in names if hasattr(module, name)), names[0])
        functions.append((newest, names[1]))  # the name by which it is known
    return {name: present for name, present in functions if inspect.isfunction(getattr(module, name, None))}


def _call_record(number: int, entry: list[Any], names: dict[int, str]) -> Record:
    count, operation, group, shape, dtype, fetched, position, phase, inside = entry
    record: Record = {"number": number, "count": count, "operation": operation, "group": group,
                      "step": position[0], "phase": phase}  # fmt: skip
    if shape is not None:
        record |= {"shape": [int(size) for size in shape], "dtype": str(dtype).removeprefix("torch.")}
    if isinstance(fetched, int):
        forward = fetched >= 0
        module = fetched if forward else ~fetched
        record |= {"module": names.get(module, ""), "module_id": module, "forward": forward}
    if inside:
        record["inside"] = True
    return record


def _frames(thread: int) -> list[FrameType]:
    frame = frames_of_threads().get(thread)
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        if not frame.f_code.co_filename.startswith(_OURS):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _frame_record(frame: FrameType) -> list[Any]:
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


def _other_threads(main: int) -> list[Record]:
    """Where the other Python threads are: of each its name and its innermost frames."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        {"name": names.get(ident, "?"), "frames": [_frame_record(frame) for frame in _frames(ident)[:6]]}
        for ident in list(frames_of_threads())
        if ident not in (main, threading.get_ident())
    ][:16]
