"""``zerokit rehearse``, and the small scripts it is tried on."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.command import called

SCRIPTS = Path(__file__).resolve().parents[1] / "rehearsal" / "scripts"


_UNSHARE = {"x86_64": 272, "aarch64": 97}
_BPF_LOAD, _BPF_JUMP_IF_EQUAL, _BPF_RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2


def without_namespaces() -> None:
    """Make the kernel refuse ``unshare`` to this process and its children, as hardened machines do."""
    lines = (
        (_BPF_LOAD, 0, 0, 0),  # the number of the system call
        (_BPF_JUMP_IF_EQUAL, 0, 1, _UNSHARE[platform.machine()]),
        (_BPF_RETURN, 0, 0, _REFUSE),
        (_BPF_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program):
        raise OSError(ctypes.get_errno(), "no system call filter")


def rehearse(
    folder: Path, *arguments: str, home: Path | None = None, before: Callable[[], None] | None = None
) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON on standard output, and standard error.

    The script runs in a process of its own, as always; the command is called here, or in another process
    where ``before`` has to run first.
    """
    # one home for all, as libraries that were imported for another one are not those of a new process
    changes = {"OMP_NUM_THREADS": "1", "HOME": str(home or os.environ["XDG_CACHE_HOME"])}
    if before is not None:
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", "rehearse", "--json", *arguments],
            cwd=folder, env={**os.environ, **changes}, capture_output=True, text=True, timeout=300,
            check=False, preexec_fn=before,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr
    code, out, err = called("rehearse", "--json", *arguments, folder=folder, **changes)
    return code, json.loads(out) if out else {}, err
