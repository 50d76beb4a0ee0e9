"""The life of one rank: identity, probe, the user's script, and a truthful last line."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import importlib.machinery
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from zerokit.launcher import rank_start
from zerokit.launcher.rank import hooks
from zerokit.launcher.rank import probe as probe_module
from zerokit.launcher.rank.calls import Calls
from zerokit.launcher.rank.oom_record import error_record
from zerokit.launcher.rank.phase_record import Identity
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank.ticker import Ticker
from zerokit.launcher.rank_file import STACKS_SIGNAL, stacks_file
from zerokit.launcher.secrets import redact

_OURS = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
_OUR_FOLDERS = (  # frames of files in these are not the script's
    _OURS,
    os.path.join(os.path.dirname(os.path.dirname(_OURS)), "instrument"),  # noqa: PTH118, PTH120
)
_BOOTSTRAP = os.path.join(_OURS, "bootstrap.py")  # noqa: PTH118
_LOCAL_RANK = ("--local_rank", "--local-rank")
_TRAINER = ("transformers.trainer", "Trainer")
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: a script's path or a module's name, and its arguments."""

    name: str
    is_module: bool
    arguments: list[str]


def parse_arguments(arguments: list[str]) -> Program:
    """Read the command line that the launcher made and DeepSpeed or torchrun passed on.

    ``[--local_rank=N] -- -- [-m] NAME ARGS…``: their parsers (argparse) drop a first ``--``, so two, one or
    none of them may be left.

    Raises:
        SystemExit: no script is named.
    """
    rest = list(arguments)
    injected: list[str] = []
    while rest and rest[0].split("=")[0] in _LOCAL_RANK:
        take = 1 if "=" in rest[0] else 2
        injected += rest[:take]
        del rest[:take]
    while rest and rest[0] == "--":
        del rest[0]
    is_module = rest[:1] == ["-m"]
    del rest[: int(is_module)]
    if not rest:
        raise SystemExit("zerokit: no script to run")
    return Program(name=rest[0], is_module=is_module, arguments=[*injected, *rest[1:]])


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def identify(target: Program) -> Identity | None:
    """This process's place in the run; None where no launcher gave it one."""
    rank = next((value for name in _RANK_VARIABLES if (value := _whole_number(name)) is not None), None)
    if rank is None:
        return None
    return Identity(
        rank=rank,
        local_rank=_whole_number("LOCAL_RANK") or 0,
        world_size=_whole_number("WORLD_SIZE") or _whole_number("SLURM_NTASKS") or 1,
        host=socket.gethostname(),
        device="cpu" if os.environ.get("ZEROKIT_DEVICE") == "cpu" else "cuda",
        script=target.name,
    )


class RankProcess:
    """Ties the probe to the ways in which a process can end."""

    def __init__(self, probe: Probe, target: Program) -> None:
        self.probe = probe
        self.target = target
        self.calls = Calls(probe)
        probe.last_words = self.calls.record
        self.ticker = Ticker(probe, self.calls)
        probe.new_phase = self.ticker.tick_now
        self.exit_code = 1  # until the script has run to its end
        self.exit_reason: str | None = None
        self._before_sigterm: Any = signal.SIG_DFL
        self._os_exit = os._exit
        self._stacks: Any = None

    def start(self) -> None:
        """Put the handlers and begin to tick. Call it first thing, in the main thread."""
        self.ticker.terminates = lambda: signal.getsignal(signal.SIGTERM) == self._on_sigterm
        with contextlib.suppress(ValueError):  # not the main thread
            self._before_sigterm = signal.signal(signal.SIGTERM, self._on_sigterm)
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            path = stacks_file(self.probe.run_dir, self.probe.identity.rank)
            self._stacks = path.open("a", buffering=1)
            # A Python handler too, so that the ticker hears of it; the stacks themselves need no interpreter.
            signal.signal(STACKS_SIGNAL, lambda number, frame: None)
            faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True, chain=True)
            if not faulthandler.is_enabled():
                faulthandler.enable(file=self._stacks, all_threads=True)
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self._at_exit)  # registered first, so it runs after the script's own
        os._exit = self._exit_now  # type: ignore[assignment]
        for name in ("execv", "execve"):  # the others of the family end in these
            setattr(os, name, self._measured_again(getattr(os, name)))
        self.ticker.start()

    def failed(self, error: BaseException) -> None:
        """An exception leaves the script."""
        self.probe.ending = True
        if isinstance(error, SystemExit):
            code = 0 if error.code is None else error.code
            self.exit_code = code & 0xFF if isinstance(code, int) else 1
            if isinstance(error.code, str):  # what Python shows as the reason
                self.exit_reason = redact(error.code[:18_000], arguments=sys.argv)[:2000]
            return
        self.exit_code = 130 if isinstance(error, KeyboardInterrupt) else 1
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        record = error_record(self.probe, error, text)
        self.probe.failure = record
        self.probe.event(record)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.ticker.handled.set()
        if self.probe.is_rank:
            self.probe.end("terminated", None, number)
        before = self._before_sigterm
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, signal.SIG_DFL if before is None else before)
        os.kill(os.getpid(), number)

    def _in_child(self) -> None:
        self.probe.disown()
        self.ticker.forget()
        os._exit = self._os_exit
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._before_sigterm)
            faulthandler.unregister(STACKS_SIGNAL)
            signal.signal(STACKS_SIGNAL, signal.SIG_DFL)

    def _measured_again(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A script that starts itself anew (to set a variable, say) is measured on."""

        def replaced(path: Any, arguments: Any, *environment: Any) -> Any:
            if self.probe.is_rank and os.fspath(path) == sys.executable:
                named = ["-m", self.target.name] if self.target.is_module else [self.target.name]
                python, *rest = arguments
                if rest[: len(named)] == named:
                    arguments = [python, _BOOTSTRAP, "--", *rest]
            return original(path, arguments, *environment)

        return replaced

    def _exit_now(self, status: int) -> None:
        left_at = left_in = None
        if not self.probe.ending:
            with contextlib.suppress(Exception):
                caller = sys._getframe(1)
                left_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                left_in = trainer_around(caller) or next(reversed(self.probe.parts), None)
        self._end(status & 0xFF, left_at, left_in)
        self._os_exit(status)

    def _at_exit(self) -> None:
        if not self.probe.is_rank:
            return
        if self.probe.identity.device == "cpu" and self.exit_code == 0 and self.probe.failure is None:
            with contextlib.suppress(Exception):
                hooks.close_process_groups()
        self._end(self.exit_code)

    def _end(self, exit_code: int, left_at: str | None = None, left_in: str | None = None) -> None:
        if not self.probe.is_rank:
            return
        with contextlib.suppress(Exception):
            state = "finished" if exit_code == 0 else "failed"
            self.probe.end(state, exit_code, reason=self.exit_reason, left_at=left_at, left_in=left_in)
            self.ticker.stop()
            path = stacks_file(self.probe.run_dir, self.probe.identity.rank)
            if path.stat().st_size == 0:
                path.unlink()


def trainer_around(frame: FrameType | None) -> str | None:
    """The ``train`` of a Transformers Trainer, or of a class made from it, from which this was called, as
    ``SFTTrainer.train``; None where no such call is under way."""
    while frame is not None:
        if frame.f_code.co_name == "train":
            kind = type(frame.f_locals.get("self"))
            if any((base.__module__, base.__name__) == _TRAINER for base in kind.__mro__):
                return f"{kind.__name__}.train"
        frame = frame.f_back
    return None


def _without_our_frames(error: BaseException, visited: set[int]) -> None:
    """Drop this package's frames from the traceback of an exception and of those it came from."""
    if id(error) in visited:
        return
    visited.add(id(error))
    # runpy's frames show for a module run by plain Python too: only those of a script are ours
    folders = (
        (entry, os.path.dirname(os.path.realpath(entry.tb_frame.f_code.co_filename)))  # noqa: PTH120
        for entry in _entries(error.__traceback__)
    )
    entries = [entry for entry, folder in folders if folder not in _OUR_FOLDERS]
    for number, entry in enumerate(entries):
        entry.tb_next = entries[number + 1] if number + 1 < len(entries) else None
    error.__traceback__ = entries[0] if entries else None
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            _without_our_frames(cause, visited)


def _entries(entry: TracebackType | None) -> list[TracebackType]:
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def run_target(target: Program) -> None:
    """Run the script or module as ``__main__``, with ``sys.argv`` and ``sys.path`` as Python sets them."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if target.is_module:
        _prepend_path(os.getcwd())  # noqa: PTH109
        sys.argv = [target.name, *target.arguments]
        runpy._run_module_as_main(target.name)  # type: ignore[attr-defined]
        return
    sys.argv = [target.name, *target.arguments]
    path = os.path.abspath(target.name)  # noqa: PTH100
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):  # noqa: PTH112
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    _prepend_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__file__ = path
    main.__dict__.update(__loader__=loader, __spec__=None, __package__=None, __cached__=None)
    with open(path, "rb") as file:  # noqa: PTH123
        source = file.read()
    try:
        code = loader.source_to_code(source, path)
    except (SyntaxError, ValueError) as error:
        raise error.with_traceback(None)  # noqa: B904 - as Python shows it: without the loader's frames
    exec(code, main.__dict__)  # noqa: S102


def _prepend_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def main(arguments: list[str]) -> None:
    """Run the script that ``arguments`` name, measured where the launcher asked for it."""
    target = parse_arguments(arguments)
    identity = identify(target)
    run_dir = os.environ.get("ZEROKIT_RUN_DIR")
    process: RankProcess | None = None
    if identity is not None and run_dir:
        rank_start.attach_pipes(identity.rank)
        if identity.device == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
        probe = probe_module.ACTIVE = Probe(identity, Path(run_dir))
        process = RankProcess(probe, target)
        process.start()
        hooks.install(probe, process.calls)
    try:
        run_target(target)
    except BaseException as error:
        if process is not None:
            _without_our_frames(error, set())
            process.failed(error)
        show: Callable[..., Any] = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, entries: TracebackType | None) -> None:
            _without_our_frames(error, set())
            show(kind, error, error.__traceback__)

        sys.excepthook = hook
        raise
    if process is not None:
        process.exit_code = 0
        process.probe.ending = True
