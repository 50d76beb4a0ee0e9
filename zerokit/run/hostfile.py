"""The hostfile, read strictly: what is no host is refused with its line, never run or skipped.

DeepSpeed's own reader takes ``slots=0``, ``slots=4garbage`` and ``-oProxyCommand=…`` as a host,
and runs locally when the file is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import FileInputError, InputError

MOST_SLOTS = 64
_MOST_HOSTS = 10_000
_LARGEST_BYTES = 4 << 20
# A host name or an address; never something that ssh could take for an option or a shell for more.
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_SLOTS = re.compile(r"slots=([0-9]{1,12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One line: a host, how many ranks it takes, and where it stands."""

    name: str
    slots: int
    line: int


def read_hostfile(path: str | Path) -> list[Host]:
    """Read ``NAME slots=N`` lines; ``#`` starts a comment. Line ends may be CRLF.

    Raises:
        InputError: no such file, or not a regular one.
        FileInputError: a line that is not a host with slots, a duplicate, or no host at all.
    """
    path = Path(path)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputError(
            f"--hostfile {path}: {what}; nothing was started (zerokit never falls back to this machine)"
        )
    if path.stat().st_size > _LARGEST_BYTES:
        raise InputError(f"--hostfile {path}: more than {_LARGEST_BYTES} bytes is no hostfile")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"--hostfile {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileInputError(path, f"is not UTF-8 text (byte {error.start})") from None
    hosts: list[Host] = []
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        host = _read_line(path, number, line)
        if host.name in lines:
            raise FileInputError(path, f"{host.name} stands on line {lines[host.name]} already", number)
        lines[host.name] = number
        hosts.append(host)
        if len(hosts) > _MOST_HOSTS:
            raise FileInputError(path, f"more than {_MOST_HOSTS} hosts", number)
    if not hosts:
        raise FileInputError(path, "names no host; write lines such as: node-1 slots=8")
    return hosts


def _read_line(path: Path, number: int, line: str) -> Host:
    parts = line.split()
    name = parts[0]
    if not _HOST.fullmatch(name):
        raise FileInputError(path, f"{name[:80]!r} is not a host name", number, 1)
    if len(parts) == 1:
        raise FileInputError(path, f"slots are missing; write: {name} slots=8", number)
    if len(parts) > 2:
        raise FileInputError(path, f"{' '.join(parts[2:])[:80]!r} follows the slots; one host a line", number)
    match = _SLOTS.fullmatch(parts[1])
    if match is None:
        raise FileInputError(path, f"{parts[1][:80]!r}: write slots=N with a whole number", number)
    slots = int(match[1])
    if not 1 <= slots <= MOST_SLOTS:
        raise FileInputError(path, f"slots={slots}: use 1 to {MOST_SLOTS}", number)
    return Host(name=name, slots=slots, line=number)


def choose_hosts(hosts: list[Host], nodes: int | None) -> list[Host]:
    """The first ``nodes`` hosts, or all.

    Raises:
        InputError: more nodes than hosts.
    """
    if nodes is None:
        return hosts
    if nodes > len(hosts):
        raise InputError(f"--nodes {nodes}: the hostfile names {len(hosts)} hosts")
    return hosts[:nodes]
