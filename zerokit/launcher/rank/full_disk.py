"""The disk behind a write that failed: torch says "unexpected pos" or "iostream error", no more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_WRITE_FAILED = re.compile(
    r"iostream error|unexpected pos \d+ vs|PytorchStreamWriter failed|file write failed"
    r"|No space left on device"
)  # caffe2/serialize/inline_container.cc of torch 2.13; errno's own words
_PATHS = ("f", "file", "filename", "path", "name", "folder", "save_path", "save_dir", "save_directory",
          "output_dir", "output_path")  # fmt: skip
"""Names of arguments that hold what is written to, in torch, safetensors, DeepSpeed and Transformers."""
_NOTHING_LEFT_BYTES = 1 << 20


def full_disk(error: BaseException, text: str) -> str | None:
    """``the disk of /out is full``, of what the failing call wrote to; None where it is not so.

    Args:
        error: with its traceback, whose calls know the file.
        text: what the exception says.
    """
    if not _WRITE_FAILED.search(text):
        return None
    for path in _written_to(error):
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH112, PTH120
        try:
            disk = os.statvfs(folder)
        except (OSError, ValueError):
            continue
        writable = not disk.f_flag & os.ST_RDONLY
        if writable and disk.f_bavail * disk.f_frsize < _NOTHING_LEFT_BYTES:
            return f"the disk of {folder} is full"
    return None


def _written_to(error: BaseException) -> Iterator[str]:
    """The paths among the arguments of the calls that failed, the innermost first."""
    calls = []
    entry = error.__traceback__
    while entry is not None:
        calls.append(entry.tb_frame)
        entry = entry.tb_next
    for call in reversed(calls):
        for name in _PATHS:
            value = call.f_locals.get(name)
            if isinstance(value, str | os.PathLike):
                yield os.fspath(value)
