"""The parent's side of processes that import a script's libraries once and fork for each rank.

:mod:`zerokit.rehearsal.process.zygote` is the other one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from zerokit.rehearsal import wire
from zerokit.rehearsal.first_imports import FirstImports, first_imports
from zerokit.rehearsal.order import READ_FILE, READ_MODULES, FakeGpu, Order, Script
from zerokit.rehearsal.script import without_launcher
from zerokit.script.entry_points import Target
from zerokit.temporary import make_folder, remove_folder

BOOTSTRAP = Path(__file__).parent / "process" / "bootstrap.py"
DATA_CACHE = "HF_DATASETS_CACHE"
_PREPARED, _READ = "prepared", "read"

_OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_MODE": "disabled", "WANDB_DISABLED": "true",
    "COMET_MODE": "DISABLED", "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "offline", "DVCLIVE_TEST": "1",
    "SWANLAB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cuda",
    "DS_SKIP_CUDA_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1", "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
}  # fmt: skip
_CACHES = {
    DATA_CACHE: "datasets", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions", "MPLCONFIGDIR": "matplotlib", "WANDB_DIR": "wandb",
    "MLFLOW_TRACKING_URI": "mlflow", "HF_MODULES_CACHE": "modules",
}  # fmt: skip


_LEAST_SECONDS = 1e-3
"""No time at all would mean not to wait."""
_TICK_NS = 10_000_000
"""By so much the time of a file may be behind the clock."""


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


_READ_BY_NATIVE_CODE = (
    "PYTHON", "LD_", "LC_", "LANG", "TZ", "PATH", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
    "CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_",
)  # fmt: skip
"""What begins the variables that Python and libraries read where nobody sees it."""


class _Kind(NamedTuple):
    """What processes have to have in common to stand for each other."""

    gpu: FakeGpu
    imports: FirstImports
    variables: tuple[tuple[str, str], ...]
    mounts: str

    @classmethod
    def of(cls, gpu: FakeGpu, imports: FirstImports, base: Mapping[str, str]) -> _Kind:
        variables = sorted((n, v) for n, v in base.items() if n.startswith(_READ_BY_NATIVE_CODE))
        return cls(gpu, imports, tuple(variables), Path("/proc/self/mountinfo").read_text(errors="replace"))


class _Process:
    """One zygote that runs.

    Attributes:
        folder: its own temporary one.
        no_namespaces: why the kernel gives it none; None: it has.
        has_learned: it has imported what one of its scripts imports later.
    """

    def __init__(self, target: Target, gpu: FakeGpu, base: Mapping[str, str], imports: FirstImports) -> None:
        self.gpu, self.kind = gpu, _Kind.of(gpu, imports, base)
        self.has_learned = False
        self._began_ns = time.time_ns() - _TICK_NS
        self.folder = make_folder("rehearsal").resolve()
        make_caches(self.folder)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (:meth:`end` closes it)
        self._wire, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(BOOTSTRAP), str(theirs.fileno())],
                env=environment_at(base, self.folder), pass_fds=(theirs.fileno(),), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        said = self.ask(self._script(target), (), None)
        self.no_namespaces: str | None = (said or {}).get("no_namespaces")

    def _script(self, target: Target) -> dict[str, Any]:
        imports = self.kind.imports
        return asdict(Script(
            target=target.name, is_module=target.script is None, arguments=target.arguments, gpu=self.gpu,
            imports=imports.names, are_later=imports.are_later, folder=str(self.folder),
            parent_pid=os.getpid(),
        ))  # fmt: skip

    def takes(self, target: Target) -> bool:
        """Whether it is what a new one of this script would be, and is it from here on."""
        if self.has_ended:
            return False
        said = self.ask({"script": self._script(target), "cwd": str(Path.cwd())}, (), None)
        return said is not None and said["taken"] and not any(map(self._has_changed, said["reads"]))

    def _has_changed(self, read: str) -> bool:
        """Whether a file that libraries read, or a folder that was searched for modules, is another now; its
        own folder holds stand-ins, which it has made."""
        if f"{read[1:]}/".startswith(f"{self.folder}/"):
            return False
        try:
            status = Path(read[1:]).stat()
        except (OSError, ValueError):
            return False
        is_meant = stat.S_ISREG(status.st_mode) if read[0] == READ_FILE else read[0] == READ_MODULES
        return is_meant and max(status.st_mtime_ns, status.st_ctime_ns) >= self._began_ns

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more: also where the thread that started it has ended."""
        return self._process.poll() is not None

    def ask(self, value: Any, files: Sequence[int], limit_seconds: float | None) -> Any:
        """Its answer; None: it ended. Raises TimeoutError: there was none in time."""
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


class _Idle:
    """Processes of scripts that were rehearsed, which wait for one whose imports are the same; ``most``: how
    many wait, the last ones; 0: none."""

    def __init__(self) -> None:
        self.most = 0
        self._waiting: list[_Process] = []
        os.register_at_fork(after_in_child=self._waiting.clear)  # they are the parent's

    def take(self, target: Target, kind: _Kind) -> _Process | None:
        for process in [one for one in self._waiting if one.kind == kind]:
            self._waiting.remove(process)
            if process.takes(target):
                return process
            process.end()
        return None

    def put(self, process: _Process) -> None:
        self._waiting.append(process)
        self.keep(self.most)

    def keep(self, most: int) -> None:
        self.most = most
        while len(self._waiting) > most:
            self._waiting.pop(0).end()


_idle = _Idle()


@contextlib.contextmanager
def shared_imports(processes: int = 2) -> Iterator[None]:
    """Import PyTorch and other libraries once for all rehearsals in this block whose scripts begin with the
    same imports, on the same GPU; each takes seconds less. Figures are those of rehearsals outside of it.

    A process of some 500 MB waits for each kind of script; it ends with the block, and makes place for a new
    one where a library was changed.

    Args:
        processes: that wait at most, the last ones.
    """
    before = _idle.most
    _idle.keep(max(before, processes))
    try:
        yield
    finally:
        _idle.keep(before)


class Zygote:
    """Runs a script's ranks in forks of one process that has imported its libraries; in a new process for
    each where a fork is not the same, or without namespaces. ``target``: the script, with any arguments.
    ``alone``: a new process for each."""

    def __init__(self, target: Target, *, alone: bool = False) -> None:
        self._target = target
        self._process: _Process | None = None
        self._alone = alone
        self._base: Mapping[str, str] | None = None
        self._learned: dict[str, Any] = {"imports": [], "set": {}}
        self._data: Path | None = None

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if (
            process is not None and _idle.most and error is None
            and not (self._alone or process.has_learned or process.has_ended)
            and process.no_namespaces is None
        ):  # fmt: skip
            self._process = None
            _idle.put(process)
        self._end()

    def _end(self) -> tuple[int, bytes]:
        self._forget_data()
        process, self._process = self._process, None
        return process.end() if process is not None else (0, b"")

    def sees(self, gpu: FakeGpu, base: Mapping[str, str], folder: Path, arguments: Sequence[str]) -> Path:
        """Where the next script to run sees its temporary folder, ``folder``; ``base``: its variables,
        without those of a rehearsal; ``arguments``: its own, by which DeepSpeed may be asked for."""
        process = self._ready(gpu, base, arguments)
        return process.folder if process.no_namespaces is None else folder

    @property
    def forks(self) -> bool:
        """Whether the next script runs in a fork of a process that has its libraries."""
        return not self._alone and self._process is not None and self._process.no_namespaces is None

    def take_data(self, cache: Path, log: Path) -> bool:
        """Put the data sets that the last script prepared in the place of ``cache``, an empty folder, and
        what it read to prepare them in front of ``log``; False: none are kept."""
        if self._data is None:
            return False
        cache.rmdir()
        (self._data / _PREPARED).rename(cache)
        with log.open("ab") as file:
            file.write((self._data / _READ).read_bytes())
        self._forget_data()
        return True

    def keep_data(self, cache: Path, log: Path) -> None:
        """Keep the data sets of a script that ended for the next one, as ``datasets`` keeps them for a user's
        next run."""
        if self.forks and log.is_file():
            self._forget_data()
            self._data = make_folder("data")
            cache.rename(self._data / _PREPARED)
            shutil.copyfile(log, self._data / _READ)

    def _forget_data(self) -> None:
        data, self._data = self._data, None
        if data is not None:
            remove_folder(data)

    def _ready(self, gpu: FakeGpu, base: Mapping[str, str], arguments: Sequence[str]) -> _Process:
        process = self._process
        if process is not None and (process.has_ended or process.gpu != gpu):
            self._end()
        if self._process is None:
            if not self._alone:
                base = without_launcher(os.environ if self._base is None else self._base)
            imports = first_imports(self._target, arguments)
            # torch is imported for every script, and the standard library costs nothing
            names = tuple(
                name
                for name in imports.names
                if name != "torch" and re.split("[.:]", name)[0] not in sys.stdlib_module_names
            )
            imports = FirstImports(names, are_later=imports.are_later)
            waiting = None if self._alone else _idle.take(self._target, _Kind.of(gpu, imports, base))
            self._process = waiting or _Process(self._target, gpu, base, imports)
        return self._process

    def rehearse(self, order: Order, files: Sequence[int], limit_seconds: float | None) -> int | None:
        """Run an order, after :meth:`sees`; the exit code, or None where it did not end in time. ``files``:
        for what the script prints, and for lines about the progress. Raises Stale: the libraries that were
        imported are not those of the script."""
        assert self._process is not None
        asked = {"order": asdict(order), "alone": self._alone, **self._learned}
        self._process.has_learned |= bool(self._learned["imports"])
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
