"""Rehearsals kept by content: one whose script, files, arguments, environment, libraries and GPU are as they
were is not made again.

A kept answer lies in the user's cache, under a key of all that is known before a rehearsal. Beside it stands
what the rehearsed process read (``process/reads.py``), with sizes and times of these files. For what native
code opens unseen (Arrow, safetensors, tokenizers) stand the files and folders that the script's arguments
name, and the paths that are written in its own source.
"""

# paths are text here, as they come: thousands are looked at
# ruff: noqa: PTH100, PTH109, PTH110, PTH112, PTH116, PTH118, PTH120
from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import stat
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from zerokit.domain.environment import OF_A_SESSION
from zerokit.domain.script_profile import by_option
from zerokit.files import cache_folder, read_regular, remove_oldest, write_whole
from zerokit.launcher.rehearsed_plan import OUTPUTS
from zerokit.launcher.secrets import Secrets, is_secret_name
from zerokit.rehearsal import step_time
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.order import READ_FILE, READ_FOLDER, READ_MODULES, reads_log
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.script import OF_A_LAUNCHER
from zerokit.temporary import temporary_folder
from zerokit.units import counted
from zerokit.values import restored

_SCHEMA = "zerokit.kept-rehearsal/1"
_MOST_BYTES, _MOST_ENTRIES = 64 << 20, 500
"""Of all that is kept; the least recently used goes."""
_LARGEST_BYTES = 16 << 20
_MOST_PATHS = 40_000
"""Read by one rehearsal, and below folders that arguments name; more are not looked at again each time."""
_DIGESTED_BYTES = 1 << 20
_SECONDS = 10.0
"""For so long libraries stay as they were looked at."""
_OF_THE_KERNEL = ("/proc/", "/sys/", "/dev/")
Say = Callable[[str], None]


def answer(
    request: RehearsalRequest,
    ranks: Sequence[int | str],
    say: Say | None,
    rehearse: Callable[[Path], Rehearsal],
) -> Rehearsal:
    """The kept answer, where all that it depends on is as it was; else a new one, which is kept. ``ranks``:
    that are rehearsed. ``rehearse``: rehearses them, with a folder for what they send each other. Raises
    InputError: as ``rehearse``."""
    kept = _Kept.of(request, ranks)
    if not request.no_cache and not (request.output or request.operators or request.writable):
        done = kept.read()
        if done is not None:
            if say is not None:
                say(f"kept {done.when_kept}: nothing that it read has changed (⟨no_cache⟩ rehearses anew)")
            return done
    if say is not None:
        steps = counted(request.steps, "optimizer step")
        say(
            f"rehearsing {request.target.name}, as a rule {steps} at most: that takes seconds for a "
            "small model, minutes for a large one"
        )
    began = time.time_ns()
    with temporary_folder("messages") as temporary:
        folder = temporary.resolve()
        done = rehearse(folder)
        if request.writable is None and _is_lasting(done):
            with contextlib.suppress(OSError):  # a cache that cannot be written is none
                # what all ranks and their forks read: kind and path
                logs = folder.glob(reads_log("", 0).name.replace("0", "*"))
                records = (one for log in logs for one in os.fsdecode(log.read_bytes()).split("\0"))
                kept.write(done, {(one[0], one[1:]) for one in records if one}, began)
    return done


def _is_lasting(done: Rehearsal) -> bool:
    """Whether another rehearsal would end the same: not one that a limit, memory or a signal ended."""
    stop = done.stopped
    return done.complete if stop is None else stop.cause != "rehearsal" or bool(stop.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Where an answer is kept, and what it depends on beside what is read."""

    path: Path
    request: RehearsalRequest
    secrets: Secrets

    @classmethod
    def of(cls, request: RehearsalRequest, ranks: Sequence[int | str]) -> _Kept:
        secrets = Secrets(os.environ, request.target.arguments)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not OF_A_SESSION.fullmatch(name)
            and not OF_A_LAUNCHER.fullmatch(name)
            and not is_secret_name(name)
        }
        target, gpu = request.target, request.gpu
        facts = [
            _SCHEMA, target.script, target.module, target.source, secrets.argv(target.arguments),
            os.getcwd(), secrets.tree(environment), sys.executable, sys.version, os.cpu_count(),
            _own_sources(),
            [repr(gpu), request.gpus, ranks, request.steps, request.launcher, request.memory_named,
             request.step_time, request.more_micro_steps, request.unconfined, request.layers,
             request.whole],
            [_of_plan(request.plan.folder), _of_plan(request.plan.deepspeed), request.plan.style,
             request.plan.no_arguments, request.plan.accept_mismatch],
            [repr(request.host), repr(step_time.machine(gpu)) if request.step_time else ""],
        ]  # fmt: skip
        digest = hashlib.sha256(
            json.dumps(facts, sort_keys=True).encode("utf-8", "surrogateescape")
        ).hexdigest()
        return cls(
            path=cache_folder() / "rehearsals" / f"{digest[:32]}.json.z", request=request, secrets=secrets
        )

    def read(self) -> Rehearsal | None:
        """What is kept, if all that it read is as it was."""
        try:
            packed = read_regular(self.path, _LARGEST_BYTES, self.path.parent)
            unpacker = zlib.decompressobj()
            data = json.loads(unpacker.decompress(packed, 8 * _LARGEST_BYTES))
            if not unpacker.eof:  # truncated, or its checksum was not reached
                return None
            if not all(_is_same(kind, path, state) for kind, path, state in data["reads"]):
                return None
            done: Rehearsal = restored(Rehearsal, data["result"])
            os.utime(self.path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, zlib.error):
            return None
        return replace(done, kept_at=data["at"])

    def write(self, done: Rehearsal, records: Iterable[tuple[str, str]], began_ns: int) -> None:
        """Keep an answer, unless something that it read has changed meanwhile, or is named by a secret.
        Raises OSError: the cache cannot be written."""
        wanted = sorted({*records, *_unseen(self.request, records)})
        if len(wanted) > _MOST_PATHS:
            return
        known = [(kind, path, *_known(kind, path)) for kind, path in wanted]
        reads = [one[:3] for one in known if one[2] is not None or not self._is_no_file(one[1])]
        if any(at >= began_ns for _, _, state, at in known if state is not None):
            return
        paths = "\n".join(path for _, path, _ in reads if not _is_library(path))
        if self.secrets.text(paths) != paths:
            return
        result = self.secrets.tree(asdict(done))
        text = json.dumps({"schema": _SCHEMA, "at": began_ns / 1e9, "reads": reads, "result": result})
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(
            self.path, zlib.compress(text.encode("utf-8", "surrogateescape"), 1), durable=False, mode=0o600
        )
        remove_oldest(self.path.parent, _MOST_ENTRIES, _MOST_BYTES)

    def _is_no_file(self, path: str) -> bool:
        """Whether it is a secret and no file: libraries ask of every argument whether it is one."""
        return not os.path.lexists(path) and self.secrets.text(path) != path


# ---------------------------------------------------------------- what is known before


@cache
def _own_sources() -> str:
    """zerokit's own files, as they are, in a digest."""
    found = []
    for folder, _, names in os.walk(Path(__file__).parents[1]):
        for name in names:
            if not folder.endswith("__pycache__"):
                status = Path(folder, name).stat()
                found.append([folder, name, status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(sorted(found)).encode()).hexdigest()


def _of_plan(folder: str | None) -> list[str | None]:
    """Digests of a plan's files; it may lie elsewhere the next time."""
    if folder is None:
        return []
    path = Path(folder)
    files = (path, path / "plan.yaml", path.parent / "ds_config.json", path / "ds_config.json")
    return [_digest(one) if one.is_file() else None for one in files]


def _digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# ---------------------------------------------------------------- what was read


def _unseen(request: RehearsalRequest, records: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What native code may read: what arguments name, and the paths in the script's own source."""
    if request.target.script is not None:
        yield READ_FILE, os.path.abspath(request.target.script)
    for option, values in by_option(request.target.arguments):
        if option.lstrip("-").replace("-", "_") not in OUTPUTS:
            for value in values:
                yield from _below(os.path.abspath(value))
    for kind, path in records:
        if kind == READ_FILE and path.endswith(".py") and not _is_library(path):
            for text in _texts(path):
                for base in (os.getcwd(), os.path.dirname(path)):
                    named = os.path.normpath(os.path.join(base, text))
                    if named != base and os.path.lexists(named) and not named.startswith(_OF_THE_KERNEL):
                        yield READ_FOLDER if os.path.isdir(named) else READ_FILE, named


def _below(path: str) -> Iterator[tuple[str, str]]:
    """A file, or each folder below one."""
    if os.path.isdir(path):
        for folder, _, _ in os.walk(path):
            yield READ_FOLDER, folder
    elif os.path.exists(path):
        yield READ_FILE, path


def _texts(source: str) -> set[str]:
    """What may be a path among the texts in a source file."""
    with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError):
        nodes = ast.walk(ast.parse(Path(source).read_bytes()))
        texts = {one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        return {text for text in texts if 0 < len(text) < 1024 and text.isprintable()}
    return set()


@cache
def _libraries() -> tuple[str, ...]:
    paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
    return tuple({os.path.join(form, "") for path in paths for form in (path, os.path.realpath(path))})


def _is_library(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path or f"{path}/".startswith(_libraries())


_library_states: dict[tuple[str, str], tuple[Any, int]] = {}
_looked_at = 0.0


def _known(kind: str, path: str) -> tuple[Any, int]:
    """As :func:`_state` and :func:`_changed_at`; a plan asks for thousands of libraries, once for each
    rehearsal."""
    global _looked_at
    if not _is_library(path):
        state = _state(kind, path)
        return state, 0 if state is None else _changed_at(kind, path)
    if time.monotonic() - _looked_at > _SECONDS:
        _looked_at = time.monotonic()
        _library_states.clear()
    if (kind, path) not in _library_states:
        _library_states[kind, path] = _state(kind, path), _changed_at(kind, path)
    return _library_states[kind, path]


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _state(kind: str, path: str) -> Any:
    """How a path is now: None: not there. A library's folder is known by its time alone."""
    status = _status(path)
    if status is None:
        return None
    if kind == READ_FILE:
        if not stat.S_ISREG(status.st_mode):
            return stat.S_IFMT(status.st_mode)
        is_small = status.st_size <= _DIGESTED_BYTES and not _is_library(path)
        with contextlib.suppress(OSError):
            return [status.st_size, status.st_mtime_ns, _digest(path) if is_small else None]
        return None
    if _is_library(path):
        return status.st_mtime_ns
    try:
        entries = list(os.scandir(path))
    except OSError:
        return None
    if kind == READ_MODULES:
        return sorted(one.name for one in entries if _is_importable(one))
    return sorted([one.name, *_size_and_time(one.path)] for one in entries)


def _is_same(kind: str, path: str, state: Any) -> bool:
    """Whether a path is as it was."""
    if kind == READ_FILE and isinstance(state, list) and not _is_library(path):
        status = _status(path)
        if status is None or status.st_size != state[0] or not stat.S_ISREG(status.st_mode):
            return False
        return status.st_mtime_ns == state[1] or (state[2] is not None and _state(kind, path)[2] == state[2])
    return bool(_known(kind, path)[0] == state)


def _size_and_time(path: str) -> tuple[int, ...]:
    status = _status(path)
    return (status.st_size, status.st_mtime_ns) if status is not None and stat.S_ISREG(status.st_mode) else ()


def _is_importable(entry: os.DirEntry[str]) -> bool:
    """Whether an import may find it in its folder; a folder without ``__init__.py`` comes last there."""
    if entry.name.endswith((*all_suffixes(), ".dist-info", ".egg-info", ".pth")):
        return True
    return os.path.exists(os.path.join(entry.path, "__init__.py"))


def _changed_at(kind: str, path: str) -> int:
    """When the newest of the files that a state tells of was written or put there. Nanoseconds."""
    found = (
        [entry.path for entry in os.scandir(path)]
        if kind == READ_FOLDER and not _is_library(path)
        else [path]
    )
    times = [
        max(one.st_mtime_ns, one.st_ctime_ns)
        for one in map(_status, found)
        if one and stat.S_ISREG(one.st_mode)
    ]
    return max(times, default=0)
