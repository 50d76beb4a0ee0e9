"""The process that imports a script's libraries once, and forks for each rank that is rehearsed.

It runs no line of the script: only installed libraries are imported here, on a view of the file system that
forgets (:mod:`zerokit.rehearsal.process.sandbox`). The script runs in forks, each in namespaces of its own.
Where a fork would not be what a new process is, it answers ``stale`` and why, and the order is for a new one:
one that has imported nothing yet is always right.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

from zerokit.rehearsal import wire
from zerokit.rehearsal.order import Order, Script, reads_log
from zerokit.rehearsal.process import sandbox
from zerokit.rehearsal.process.guesses import is_library, start_in
from zerokit.rehearsal.process.libraries import VariablesRead, Watch, import_all
from zerokit.rehearsal.process.main import Rehearsed
from zerokit.rehearsal.process.reads import Reads
from zerokit.rehearsal.process.stand_ins import asks_for_flash_attention
from zerokit.values import restored

_LOOK_SECONDS = 0.02
_OURS = (
    "zerokit.catalog.gpus",
    "zerokit.launcher.rank.process",
    "zerokit.rehearsal.process.offline",
    "zerokit.rehearsal.process.summary",
    "zerokit.timing.recorded_step",
)
"""Modules of ours that each rehearsal needs in the end."""
_MOST_SHAPES_BYTES = 16 << 20
_TABLES = {"transformers.conversion_mapping": "get_checkpoint_conversion_mapping"}
"""What makes a table of a library's, by its module: with thousands of patterns, whatever is asked of it."""


def main(descriptor: int) -> int:
    """Answer what is asked for at the socket, until it is closed; the exit code."""
    with socket.socket(fileno=descriptor) as parent:
        told, _ = wire.receive(parent)
        script = restored(Script, told)
        sandbox.end_with_parent()
        if os.getppid() != script.parent_pid:
            return 1
        nest, why_none = None, None
        try:
            nest = sandbox.enter([Path(script.folder)])
        except sandbox.NoSandbox as error:
            why_none = str(error)
        if isinstance(nest, int):
            return nest
        wire.send(parent, {"no_namespaces": why_none})
        return Zygote(parent, script, nest, why_none).serve()


class Zygote:
    """The process, once it is where it is to be."""

    def __init__(
        self, parent: socket.socket, script: Script, nest: sandbox.Nest | None, no_namespaces: str | None
    ) -> None:
        self._parent, self._script, self._nest, self._no_namespaces = parent, script, nest, no_namespaces
        self._environment = dict(os.environ)
        self._first, self._later = VariablesRead(), VariablesRead()
        self._set: dict[str, str] = {}
        self._broken: str | None = None
        self._reads = Reads()
        self._reads.install()
        self._rehearsed = Rehearsed(script)
        with self._first.noted():
            self._rehearsed.put_in_place()
        if self._rehearsed.why_not is None:
            for module in _OURS:
                importlib.import_module(module)
        self._base = set(sys.modules)
        self._read_for_all = {read for read in tuple(self._reads.seen) if is_library(read[1:])}
        self._has_imported = False
        self._folders: list[str] = []  # that libraries have made, as torch's compiler does for its cache

    def serve(self) -> int:
        """Until nobody asks any more."""
        while True:
            try:
                told, files = wire.receive(self._parent)
            except OSError:
                return 1
            if told is None:
                return 0
            if "script" in told:
                answer: dict[str, Any] | None = self._take(restored(Script, told["script"]), told["cwd"])
            else:
                answer = self._rehearse(told, files)
            for file in files:
                os.close(file)
            if answer is None:
                return 1
            wire.send(self._parent, answer)

    def _take(self, script: Script, cwd: str) -> dict[str, Any]:
        """Be the process of another script with the same imports, unless it is one of this script alone; and
        what was read for all."""
        self._reads.seen &= self._read_for_all
        is_like = asks_for_flash_attention(script) == asks_for_flash_attention(self._script)
        if self._nest is None or self._broken or self._rehearsed.why_not or not is_like:
            return {"taken": False, "reads": []}
        os.chdir(cwd)
        self._rehearsed.machine.shapes.forget()  # that script may have operators of its own
        self._nest.folder, self._script = Path(cwd), script
        return {"taken": True, "reads": sorted(self._read_for_all)}

    # ---------------------------------------------------------------- libraries

    def _import(self, names: Sequence[str], reads: VariablesRead) -> None:
        if self._nest is None or self._broken or self._rehearsed.why_not:
            return
        (files, size), read, made = self._nest.written(), set(self._reads.seen), set(self._reads.made)
        with reads.noted():
            import_all(names)
        from zerokit.rehearsal.process import native

        native.note()  # what it reads is read once
        if not self._has_imported:
            self._has_imported = True
            self._read_for_all |= self._reads.seen - read
        folders = self._reads.empty_folders(self._reads.made - made)
        self._folders += folders
        files_now, size_now = self._nest.written()
        # a folder takes a place itself, and so may each one that it lies in
        if size_now != size or files - files_now > sum(folder.count("/") for folder in folders):
            self._broken = "libraries write when they are imported"
        elif threading.active_count() > 1:
            self._broken = "libraries start threads when they are imported"
        elif not self._rehearsed.is_unused:
            self._broken = "libraries use the GPU when they are imported"
        elif shadowed := self._shadowed():
            self._broken = f"{shadowed} lies beside the script, too"

    def _import_later(self, names: list[str], variables: dict[str, str]) -> None:
        """What another fork has imported by the time it trained, with what it had set by then."""
        if not set(names) <= set(sys.modules):
            before = {name: os.environ.get(name) for name in variables}
            os.environ.update(variables)
            self._set |= variables
            self._import(names, self._later)
            for module, first_use in _TABLES.items():
                with contextlib.suppress(AttributeError):  # another version's
                    getattr(sys.modules.get(module), first_use)("")
            for name, value in before.items():
                if name not in self._later.made:
                    os.environ.pop(name)
                    os.environ.update({} if value is None else {name: value})

    def _shadowed(self) -> str | None:
        """A module that the script would import from its own folder."""
        script = self._script
        folder = Path.cwd() if script.is_module else Path(os.path.realpath(script.target)).parent
        roots = {name.partition(".")[0] for name in set(sys.modules) - self._base}
        for root in sorted(roots):
            if (folder / f"{root}.py").is_file() or (folder / root / "__init__.py").is_file():
                return root
        return None

    def _unlike(self, environment: dict[str, str]) -> str | None:
        """Which variable would have been read at the imports, and is another one here."""
        for name in {*environment, *self._environment}:
            value, before = environment.get(name), self._environment.get(name)
            # of what was set for later imports the script itself tells
            reads = (self._first,) if name in self._set else (self._first, self._later)
            if value != before and any(read.differs(name, value, before) for read in reads):
                return f"{name} was read when libraries were imported"
        return None

    # ---------------------------------------------------------------- forks

    def _rehearse(self, told: dict[str, Any], files: list[int]) -> dict[str, Any] | None:
        order = restored(Order, told["order"])
        if not told["alone"]:
            self._import(self._script.imports, self._later if self._script.are_later else self._first)
            self._import_later(told["imports"], told["set"])
            if self._broken is not None:
                return {"stale": self._broken}
            if asks_for_flash_attention(order) != asks_for_flash_attention(self._script):
                return {"stale": "flash-attn"}
            if (why := self._unlike(order.environment)) is not None:
                return {"unlike": why}
        folder = self._script.folder
        with tempfile.TemporaryFile(dir=folder) as report, tempfile.TemporaryFile(dir=folder) as shapes:
            child = self._fork(order, files[0])
            if not child:
                learns = None if told["alone"] else not told["imports"]
                self._run(replace(order, progress_fd=files[1]), report.fileno(), shapes, learns)
            code = self._wait(child)
            report.seek(0)
            said = report.read()
            if 0 < shapes.seek(0, os.SEEK_END) <= _MOST_SHAPES_BYTES:
                shapes.seek(0)
                self._rehearsed.machine.shapes.learn(shapes.read())
        return None if code is None else {"code": code, **(json.loads(said) if said else {})}

    def _fork(self, order: Order, output: int) -> int:
        """As ``os.fork``; the new process prints into ``output``, after what the libraries have printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # what the libraries have made is not looked through again in each fork
        child = self._nest.fork(_shared(order), Path(self._script.folder)) if self._nest else os.fork()
        if not child:
            self._parent.close()
            sandbox.end_with_parent()
            os.write(output, os.pread(1, os.fstat(1).st_size, 0))
            for stream in (1, 2):
                os.dup2(output, stream)
            os.close(output)
        return child

    def _wait(self, child: int) -> int | None:
        """A fork's exit code; None: nobody asks any more, and it was ended."""
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            ready, _, _ = select.select([self._parent], [], [], _LOOK_SECONDS)
            if ready:  # closed: the answer is not out
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                return None

    def _run(self, order: Order, report: int, shapes: IO[bytes], learns: bool | None) -> NoReturn:
        """In a fork: become the order's process, run it, and end; ``shapes``: for what operators made of
        which arguments; ``learns``: as :class:`Watch` does, None: nobody watches it."""
        code = 1
        try:
            os.chdir(order.cwd)
            start_in(order.cwd)
            if order.messages_folder is not None:
                own = [order.folder, order.messages_folder, self._script.folder]
                self._reads.log_to(reads_log(order.messages_folder, order.rank), own)
            for folder in self._folders:
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (text, as it was made)
            if self._no_namespaces is not None and not order.unconfined:
                Path(order.result_path).write_text(json.dumps({"no_namespaces": self._no_namespaces}))
            else:
                self._take_environment(order.environment)
                if self._no_namespaces is not None:
                    sandbox.refuse_writes(_shared(order))
                trains = None if learns is None else self._watched(report, learns)
                self._rehearsed.run(order, self._no_namespaces, trains)
                if trains is not None:  # it may have ended before: for what it found imported, perhaps
                    trains()
                if self._rehearsed.why_not is None:
                    shapes.write(self._rehearsed.machine.shapes.news())
                    shapes.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # no exit handler of a library meets the fake GPU

    def _take_environment(self, environment: dict[str, str]) -> None:
        """Take the order's variables, beside what the libraries have set; and what was chosen by them, or by
        chance, is chosen anew."""
        added = {n: v for n, v in os.environ.items() if self._environment.get(n) != v}
        for name in [name for name in os.environ if name not in environment and name not in added]:
            del os.environ[name]
        os.environ.update(environment | added)
        tempfile.tempdir = None
        if (numpy := sys.modules.get("numpy.random")) is not None:
            numpy.seed()

    def _watched(self, report: int, learns: bool) -> Callable[[], None]:
        """Watch the script until the function is called that this returns: it trains, or has ended."""
        watch: Watch | None = Watch(self._later, self._set, learns=learns)

        def trains() -> None:
            nonlocal watch
            if watch is None:
                return
            found, watch = watch.end(), None
            os.write(report, json.dumps(found).encode())
            if "stale" in found:
                os._exit(0)

        return trains


def _shared(order: Order) -> list[Path]:
    return [Path(path) for path in (order.folder, order.messages_folder, order.writable) if path]
