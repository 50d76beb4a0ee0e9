"""What a stack tells: the phase that it is certainly in, the module, and the line of the user's code."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import NamedTuple

from zerokit.domain.phases import BY_NAME
from zerokit.instrument.phases import CALLS
from zerokit.instrument.scopes import scopes
from zerokit.rehearsal.result import GATHERED
from zerokit.snapshots.unpickling import NO_STACK, Frame, SnapshotReader

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
_TORCH_MODULES = "/torch/nn/modules/"
_MODULE = "/torch/nn/modules/module.py"
_STARTS = frozenset(("<module>", "_bootstrap", "_bootstrap_inner", "_run_code", "_run_module_as_main"))
"""Outermost functions of a thread that Python started (threading.py, runpy, 3.10 to 3.14): without one of
them it is autograd's own, in which hooks and recomputed forwards run."""
_Rows = tuple[tuple[str, frozenset[str]], ...]
_STEPS: _Rows = (
    ("/torch/optim/", frozenset()),
    ("/bitsandbytes/optim/", frozenset()),
    ("/deepspeed/ops/adam/", frozenset()),
    ("/deepspeed/runtime/", frozenset(("step", "_take_model_step", "_optimizer_step"))),
)  # fmt: skip
"""Parts of files and the functions in them (none: any) that are the optimizer's step;
deepspeed/runtime/engine.py:3505 and 3567, zero/stage3.py:1235 and 2873, zero/stage_1_and_2.py:2967 and
3013 (0.19.8)."""
_BACKWARDS: _Rows = (
    ("/torch/autograd/__init__.py", frozenset(("backward", "grad"))),
    ("/torch/autograd/graph.py", frozenset(("_engine_run_backward",))),
    ("/deepspeed/runtime/engine.py", frozenset(("backward",))),  # with what follows autograd in it
)
_INITS: _Rows = (("/torch/distributed/fsdp/_fully_shard/", frozenset(("fully_shard",))),)
_NO_GRADIENTS = "/torch/utils/_contextlib.py"
_FILES_OF_CALLS = {
    f"/{module.replace('.', '/')}{end}": calls
    for module, calls in CALLS.items()
    for end in (".py", "/__init__.py")
}
_GATHERS = ("/deepspeed/runtime/zero/partition", "/torch/distributed/fsdp/")
"""Parts of files whose functions with ``gather`` in their names gather weights (DeepSpeed 0.19.8, torch
2.13)."""


class Origin(NamedTuple):
    """Where an allocation comes from.

    Attributes:
        mark: the phase that the stack is certainly in; empty: it is that of what came before.
        module: a class where its source is known, else the file that it stands in.
        what: what it certainly is; empty: that depends on when it is freed.
        computes: whether a module's forward is on the stack.
    """

    mark: str = ""
    module: str = ""
    location: str = ""
    what: str = ""
    computes: bool = False


class Origins:
    """Origins of the stacks of a file, each looked at once."""

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self._known: dict[int, Origin] = {}
        own = reader.value.get("zerokit", {}) if isinstance(reader.value, dict) else {}
        self._scopes: dict[str, dict[int, str]] = defaultdict(dict)
        try:
            for file, names in own.get("scopes", {}).items():
                self._scopes[str(file)] = {int(line): "" + name for line, name in names.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise reader.refused("its classes are not named by file and line") from error
        self.has_stacks = any(stack != NO_STACK for stack in reader.events.stack)

    def of(self, stack: int) -> Origin:
        """Read a stack."""
        if stack not in self._known:
            self._known[stack] = self._read(self._reader.frames(stack))
        return self._known[stack]

    def _read(self, frames: tuple[Frame, ...]) -> Origin:
        lines = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<")]
        if not lines:
            return Origin(mark="backward" if self.has_stacks else "")
        computes = any(frame.file.endswith(_MODULE) and frame.name == "_call_impl" for frame in lines)
        return Origin(
            mark=_mark(lines, computes),
            module=self._module(lines),
            location=_location(lines),
            what=_what(lines),
            computes=computes,
        )

    def _module(self, lines: list[Frame]) -> str:
        """The innermost class whose code is on the stack, those that PyTorch comes with last."""
        if any(_is_base(frame) and frame.name == "_apply" for frame in lines):
            return "Module.to"
        inside = [frame for frame in lines if frame.name in ("forward", "__init__") and not _is_base(frame)]
        own = [frame for frame in inside if _TORCH_MODULES not in frame.file]
        for frame in (*own[:1], *inside[:1]):
            return self._class(frame)
        for frame in lines:
            if any(_calls(frame, (row,)) for row in _STEPS) or not _is_torch(frame.file):
                return self._class(frame)
        return self._class(lines[0])

    def _class(self, frame: Frame) -> str:
        """The class that a line stands in; of a file whose source is not here the file's own name."""
        known = self._scopes[frame.file]
        if frame.line not in known:
            known |= {frame.line: "", **scopes(frame.file, (frame.line,))}
        name = known[frame.line]
        if name.split(".")[-1] != frame.name:  # another version of the file
            name = ""
        return name.rpartition(".")[0].replace(".<locals>", "") or _short(frame.file)


def _mark(lines: list[Frame], computes: bool) -> str:
    for frame in lines:
        for end, calls in _FILES_OF_CALLS.items():
            if frame.file.endswith(end):
                for call in calls:
                    if frame.name in call.names:
                        return call.phase
    tables = {"init": _INITS, "step": _STEPS, "backward": _BACKWARDS}
    for phase, rows in tables.items():
        if any(_calls(frame, rows) for frame in lines):
            return phase
    if lines[-1].name not in _STARTS:
        return "backward"
    if computes:
        outermost = max(place for place, frame in enumerate(lines) if frame.name == "_call_impl")
        # a module without gradients inside of one with them is a part of its forward
        around = lines[outermost:]
        return "eval" if any(_NO_GRADIENTS in frame.file for frame in around) else "forward"
    return ""


def _what(lines: list[Frame]) -> str:
    if any("gather" in frame.name and any(part in frame.file for part in _GATHERS) for frame in lines):
        return GATHERED
    moves = any(_is_base(frame) and frame.name == "_apply" for frame in lines)
    return BY_NAME["load"].holds if moves or any(frame.name == "from_pretrained" for frame in lines) else ""


def _calls(frame: Frame, rows: _Rows) -> bool:
    return any(part in frame.file and (not names or frame.name in names) for part, names in rows)


def _is_base(frame: Frame) -> bool:
    return frame.file.endswith(_MODULE)


def _is_torch(file: str) -> bool:
    return "/torch/" in f"/{_short(file)}" or _is_made_up(file)


def _is_library(file: str) -> bool:
    return _is_made_up(file) or any(part in file for part in _LIBRARIES)


def _is_made_up(file: str) -> bool:
    """Whether nobody wrote the file: the compiler's, whose stacks go on with the lines that it compiled."""
    return file.startswith("<") or "/torchinductor_" in file


def _location(lines: list[Frame]) -> str:
    """The innermost line of the user's own code; else of a library other than PyTorch, else the innermost."""
    own = [frame for frame in lines if not _is_library(frame.file)]
    others = [frame for frame in lines if not _is_torch(frame.file)]
    frame = (own or others or lines)[0]
    return f"{_short(frame.file)}:{frame.line}"


def _short(file: str) -> str:
    """A file's path below the folder of packages, or below this one."""
    for part in _LIBRARIES[:2]:
        file = file.rpartition(part)[2]
    here = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118
    return file.removeprefix(here)
