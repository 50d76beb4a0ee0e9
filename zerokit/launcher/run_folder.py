"""The run folder: made before the run, never mixing two runs, every file whole or absent."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zerokit.emit import plan_file
from zerokit.emit.files import ACCELERATE_NAME, DEEPSPEED_NAMES
from zerokit.errors import InputError, ReportNotWritten
from zerokit.files import write_whole
from zerokit.launcher import locks

PLAN_FILE = plan_file.FILE_NAME
CONFIG_FILE = DEEPSPEED_NAMES["raw"]
ACCELERATE_FILE = ACCELERATE_NAME
DEEPSPEED_ENV_FILE = "deepspeed_env"
COMMAND_FILE = "command.json"
REPORT_FILE, REPORT_PAGE = "report.json", "report.html"
LOGS_FOLDER = "logs"
NEXT_PLAN_FOLDER = "next-plan"
COMMAND_SCHEMA = "zerokit.command/1"
_NAMES = (PLAN_FILE, CONFIG_FILE, ACCELERATE_FILE, DEEPSPEED_ENV_FILE, COMMAND_FILE, REPORT_FILE, REPORT_PAGE,
          LOGS_FOLDER, NEXT_PLAN_FOLDER)  # fmt: skip
_OF_A_RUN = re.compile(
    r"rank-\d+\.jsonl|stacks-\d+(\.native)?\.txt|flight-recorder-\d+|plan|(retry|restart)-\d+|oom-\d+\..*|"
    r"alive|tune\.json|trial-\d+|" + "|".join(map(re.escape, _NAMES))
)


def make_run_folder(
    requested: str | None, script: str, stack: ExitStack, say: Callable[[str], None] = lambda text: None
) -> Path:
    """Make ``runs/<timestamp>-<script>`` or the folder asked for; returns its absolute path.

    The folder is locked until ``stack`` is closed, before anything in it is touched. What an earlier run left
    in it moves to ``previous-<n>/``, which ``say`` hears: two runs are never mixed, and none is lost.

    Raises:
        InputError: the folder cannot be made, or another launch is running in it.
        ReportNotWritten: nothing can be written there (disk full).
    """
    if requested is None:
        name = Path(script).name.removesuffix(".py")  # a module keeps its last part: trl.scripts.sft
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "script"
        base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem[:60]}"
        folder = _make_fresh(base)
    else:
        folder = Path(requested)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"⟨run_dir⟩ {requested}: cannot be made: {error.strerror}") from None
    lock = locks.lock_run_folder(folder, str(folder))
    stack.callback(lock.release)
    if requested is not None:
        moved_to = _put_aside(folder)
        if moved_to is not None:
            say(f"{requested} held an earlier run: it is in {moved_to} now")
    write_atomically(folder / ".writable", b"x" * 4096)
    (folder / ".writable").unlink(missing_ok=True)
    folder = folder.resolve()
    _LOCKS[folder] = lock
    stack.callback(_LOCKS.pop, folder, None)
    return folder


_LOCKS: dict[Path, locks.FileLock] = {}


def lock_of(folder: Path) -> int | None:
    """The descriptor of the lock that this process holds on a run folder, for the guard to hold too."""
    lock = _LOCKS.get(folder)
    return lock.fd if lock is not None else None


def _make_fresh(base: Path) -> Path:
    for attempt in range(1000):
        folder = base if attempt == 0 else base.with_name(f"{base.name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(
                f"{base}: the run folder cannot be made: {error.strerror}; name another with ⟨run_dir⟩"
            ) from None
        return folder
    raise InputError(f"{base}: a thousand runs in this second; name a folder with ⟨run_dir⟩")


def _put_aside(folder: Path) -> Path | None:
    """Move an earlier run's files away; returns where they are then."""
    old = [path for path in folder.iterdir() if _OF_A_RUN.fullmatch(path.name)]
    if not old:
        return None
    names = (folder / f"previous-{number}" for number in itertools.count(1))
    target = next(name for name in names if not name.exists())
    moved_files: list[Path] = []
    try:
        target.mkdir()
        for path in old:
            path.rename(target / path.name)
            moved_files.append(path)
    except OSError as error:
        for path in moved_files:  # all of it or nothing
            with contextlib.suppress(OSError):
                (target / path.name).rename(path)
        with contextlib.suppress(OSError):
            target.rmdir()
        raise InputError(
            f"⟨run_dir⟩ {folder}: holds an earlier run that cannot be moved aside: {error.strerror}"
        ) from None
    return target


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all (temporary file, ``os.replace``). Raises ReportNotWritten: disk full,
    read-only, or the like."""
    try:
        write_whole(path, data, mode=0o600)
    except OSError as error:
        raise ReportNotWritten(
            f"{path}: cannot be written: {error.strerror}; free some space or name another "
            "folder with ⟨run_dir⟩"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; see :func:`write_atomically`."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A byte of a path or argument that is no UTF-8 is a lone surrogate here, and \udcXX is JSON's way.
    write_atomically(path, text.encode("utf-8", "backslashreplace"))
