"""The hostfile of a launch: read as strictly as ``zerokit check`` does, never skipped or replaced.

DeepSpeed itself runs locally when the file is missing.
"""

from __future__ import annotations

from pathlib import Path

from zerokit.errors import InputError, about
from zerokit.linter.hostfile import Host, load_hostfile
from zerokit.units import counted

__all__ = ["Host", "choose_hosts", "read_hostfile"]


def read_hostfile(path: str | Path) -> list[Host]:
    """Read ``NAME slots=N`` lines; ``#`` starts a comment.

    Raises:
        InputError: no such file, or not a regular one.
        FileInputError: a line that is not a host with slots, a duplicate, or no host at all.
    """
    path = Path(path)
    if not path.is_file():
        fault = "is not a file" if path.exists() else "does not exist"
        raise InputError(
            f"⟨hostfile⟩ {path}: {fault}; nothing was started (zerokit never falls back to this machine)"
        )
    with about("hostfile"):
        return load_hostfile(str(path))


def choose_hosts(hosts: list[Host], nodes: int | None) -> list[Host]:
    """The first ``nodes`` hosts, or all.

    Raises:
        InputError: more nodes than hosts.
    """
    if nodes is None:
        return hosts
    if nodes > len(hosts):
        raise InputError(f"⟨nodes⟩ {nodes}: the hostfile names {counted(len(hosts), 'host')}")
    return hosts[:nodes]
