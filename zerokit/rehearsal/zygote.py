"""The parent's side of processes that import a script's libraries once and fork for each rank.

:mod:`zerokit.rehearsal.process.zygote` is the other one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from zerokit.rehearsal import wire
from zerokit.rehearsal.order import FakeGpu, Order, Script
from zerokit.rehearsal.script import without_launcher
from zerokit.script import trainer_arguments
from zerokit.script.entry_points import Target
from zerokit.script.first_imports import FirstImports, first_imports
from zerokit.temporary import make_folder, remove_folder

BOOTSTRAP = Path(__file__).parent / "process" / "bootstrap.py"
DATA_CACHE = "HF_DATASETS_CACHE"

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "DISABLED",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "offline",
    "DVCLIVE_TEST": "1",
    "SWANLAB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "DS_ACCELERATOR": "cuda",
    "DS_SKIP_CUDA_CHECK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
}
_CACHES = {
    DATA_CACHE: "datasets",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "MPLCONFIGDIR": "matplotlib",
    "WANDB_DIR": "wandb",
    "MLFLOW_TRACKING_URI": "mlflow",
    "HF_MODULES_CACHE": "modules",
}


_LEAST_SECONDS = 1e-3
"""No time at all would mean not to wait."""


class Stale(Exception):
    """A fork would not be what a new process is; the message says why. The next one is of a new process with
    the variables that were wanted, then a new process itself."""


def environment_at(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A script's variables in a rehearsal whose temporary folder it sees as ``folder``."""
    caches = {name: str(folder / "caches" / kind) for name, kind in _CACHES.items()}
    threads = {"OMP_NUM_THREADS": "1"} if "OMP_NUM_THREADS" not in base else {}
    return {**base, **_OFFLINE, **caches, **threads, "TMPDIR": str(folder)}


def make_caches(folder: Path) -> Path:
    """Make the folders that :func:`environment_at` names; returns that of data sets."""
    for kind in _CACHES.values():
        (folder / "caches" / kind).mkdir(parents=True)
    return folder / "caches" / _CACHES[DATA_CACHE]


class _Process:
    """One zygote that runs.

    Attributes:
        folder: its own temporary one.
        no_namespaces: why the kernel gives it none; None: it has.
    """

    def __init__(self, target: Target, gpu: FakeGpu, base: Mapping[str, str], imports: FirstImports) -> None:
        self.gpu = gpu
        self.folder = make_folder("rehearsal").resolve()
        make_caches(self.folder)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (:meth:`end` closes it)
        self._wire, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(BOOTSTRAP), str(theirs.fileno())],
                env=environment_at(base, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        script = Script(
            target=target.name, is_module=target.script is None, arguments=target.arguments, gpu=gpu,
            imports=imports.names, are_later=imports.are_later, folder=str(self.folder),
            parent_pid=os.getpid(),
        )  # fmt: skip
        said = self.ask(asdict(script), (), None)
        self.no_namespaces: str | None = (said or {}).get("no_namespaces")

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more: also where the thread that started it has ended."""
        return self._process.poll() is not None

    def ask(self, value: Any, files: Sequence[int], limit_seconds: float | None) -> Any:
        """Its answer; None: it ended.

        Raises:
            TimeoutError: there was none in time.
        """
        self._wire.settimeout(None if limit_seconds is None else max(limit_seconds, _LEAST_SECONDS))
        try:
            wire.send(self._wire, value, files)
            return wire.receive(self._wire)[0]
        except TimeoutError:
            raise
        except OSError:
            return None

    def end(self) -> tuple[int, bytes]:
        """Nothing of its session is left: its exit code, and what it printed beside the scripts."""
        self._wire.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)  # it reads that nobody asks any more
        self._process.terminate()  # it waits until all that it started has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        with self._output:
            self._output.seek(0)
            printed = self._output.read()
        remove_folder(self.folder)
        return code, printed


class Zygote:
    """Runs a script's ranks in forks of one process that has imported its libraries; in a new process for
    each where a fork is not the same, or without namespaces.

    Args:
        target: the script, with any arguments.
        alone: a new process for each.
    """

    def __init__(self, target: Target, *, alone: bool = False) -> None:
        self._target = target
        self._process: _Process | None = None
        self._alone = alone
        self._base: Mapping[str, str] | None = None
        self._learned: dict[str, Any] = {"imports": [], "set": {}}
        self._parsed: dict[str, Any] = {}

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> tuple[int, bytes]:
        process, self._process = self._process, None
        return process.end() if process is not None else (0, b"")

    def sees(self, gpu: FakeGpu, base: Mapping[str, str], folder: Path) -> Path:
        """Where the next script to run sees its temporary folder, ``folder``.

        Args:
            base: its variables, without those of a rehearsal.
        """
        process = self._ready(gpu, base)
        return process.folder if process.no_namespaces is None else folder

    def _ready(self, gpu: FakeGpu, base: Mapping[str, str]) -> _Process:
        process = self._process
        if process is not None and (process.has_ended or process.gpu != gpu):
            self._end()
        if self._process is None:
            if not self._alone:
                base = without_launcher(os.environ if self._base is None else self._base)
            self._process = _Process(self._target, gpu, base, first_imports(self._target))
        return self._process

    def rehearse(self, order: Order, files: Sequence[int], limit_seconds: float | None) -> int | None:
        """Run an order, after :meth:`sees`; the exit code, or None where it did not end in time.

        Args:
            files: for what the script prints, and for lines about the progress.

        Raises:
            Stale: the libraries that were imported are not those of the script.
        """
        assert self._process is not None
        asked = {"order": order.to_dict(), "alone": self._alone, **self._learned}
        try:
            said = self._process.ask(asked, files, limit_seconds)
        except TimeoutError:
            self._end()
            return None
        except BaseException:
            self._end()
            raise
        if said is None:
            code, printed = self._end()
            os.write(files[0], printed)
            return code
        if "stale" in said or "unlike" in said:
            self._alone = "stale" in said or self._base is not None
            self._base = order.environment
            self._end()
            raise Stale(said.get("stale") or said["unlike"])
        if self._alone or self._process.no_namespaces is not None:
            self._end()
        if said.get("imports"):
            self._learned = {name: said[name] for name in self._learned}
        return int(said["code"])

    @contextlib.contextmanager
    def parsing(self, gpu: FakeGpu) -> Iterator[None]:
        """In this block what a Trainer's arguments mean is told by a fork."""
        with trainer_arguments.parsed_by(functools.partial(self._parse, gpu)):
            yield

    def _parse(
        self, gpu: FakeGpu, order: dict[str, Any], environment: dict[str, str], limit_seconds: float
    ) -> dict[str, Any] | None:
        key = json.dumps((order, environment))
        if key not in self._parsed:
            if self._alone:
                return None
            asked = {"parse": order, "environment": environment}
            began = time.monotonic()
            process = self._ready(gpu, {})
            try:
                said = process.ask(asked, (), limit_seconds - (time.monotonic() - began))
            except TimeoutError:
                said = None
            if said is None:
                self._end()
            self._parsed[key] = (said or {}).get("values")
        values: dict[str, Any] | None = self._parsed[key]
        return values
