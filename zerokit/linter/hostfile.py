"""DeepSpeed hostfiles, strictly: what its own parser lets pass is refused here.

``deepspeed/launcher/runner.py:_parse_hostfile`` matches only the start of a line, so it accepts
``slots=0``, ``slots=4garbage`` and a host such as ``-oProxyCommand=…``, which ssh takes as an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from zerokit.errors import FileInputError
from zerokit.linter.finding import Finding, Row
from zerokit.strictload import BYTE_ORDER_MARK, Document, Location, read_text
from zerokit.units import counted

MAX_SLOTS = 1024
MAX_HOSTS = 10_000
_SOURCE = "DeepSpeed 0.19.8, launcher/runner.py:224"
# a host name or an IPv4 address; never what ssh could take for an option, or a shell for more
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_IPV6 = re.compile(r"\[?[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\]?")
_LINE = re.compile(r"(?P<host>\S+)\s+(?P<rest>\S.*)")


_TOO_FEW_SLOTS = Row(
    "hostfile-too-few-slots", "", "{total} for {world_size}: fewer ranks will be started",
    "add hosts or slots", _SOURCE,
)  # fmt: skip
_UNEVEN = Row(
    "hostfile-uneven", "",
    "{name} has {slots} slots, {first} has {slots_of_first}: launchers that take one number per node leave "
    "some unused or fail", "give every node the same number", _SOURCE, "warning",
)  # fmt: skip
_BYTE_ORDER_MARK = Row(
    "hostfile-byte-order-mark", "", "a byte order mark: DeepSpeed takes it as part of the first line",
    "save the file as UTF-8 without it", _SOURCE,
)  # fmt: skip
_LINE_ENDING = Row(
    "hostfile-line-ending", "", "a Windows line ending: other launchers take it as part of the line",
    "save the file with Unix line endings", _SOURCE, "warning",
)  # fmt: skip
_DUPLICATE = Row(
    "hostfile-duplicate", "", "{name} is already in line {first_lines}: DeepSpeed refuses the file",
    "keep one line per host", _SOURCE,
)  # fmt: skip
_TOO_MANY = Row(
    "hostfile-too-many", "", "names more than {MAX_HOSTS} hosts", "split it", _SOURCE,
)  # fmt: skip
_EMPTY = Row(
    "hostfile-empty", "", "names no host: DeepSpeed refuses the file", "write HOST slots=N lines", _SOURCE,
)  # fmt: skip
_SYNTAX = Row(
    "hostfile-syntax", "", "the line names no slots", "write: HOST slots=N", _SOURCE,
)  # fmt: skip
_OPTION_AS_HOST = Row(
    "hostfile-option-as-host", "",
    "the host begins with -, and would be given to ssh as an option, which can run a command",
    "write a host name", _SOURCE,
)  # fmt: skip
_USER = Row(
    "hostfile-user", "", "the host names a user: DeepSpeed takes @ as the mark between hosts",
    "write the host alone, and the user in ~/.ssh/config", _SOURCE,
)  # fmt: skip
_IPV6_HOST = Row(
    "hostfile-host", "", "the host is an IPv6 address: pdsh takes a colon as the mark after its transport",
    "write a name that resolves to it", _SOURCE,
)  # fmt: skip
_NO_HOST = Row(
    "hostfile-host", "", "the line begins with no host name", "write a name or an address", _SOURCE,
)  # fmt: skip
_NO_SLOTS = Row(
    "hostfile-slots", "", "the line does not go on with slots=N: DeepSpeed {effect}",
    "write slots= and the number of GPUs", _SOURCE,
)  # fmt: skip
_SLOTS = Row(
    "hostfile-slots", "", "{count} slots: DeepSpeed accepts it, and starts {ranks} ranks there",
    "use 1 to {MAX_SLOTS}", _SOURCE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One line of a hostfile."""

    name: str
    slots: int
    line: int


def load_hostfile(path: str) -> list[Host]:
    """Read a hostfile, for launching; warnings pass. Raises FileInputError: the first error, with its
    line."""
    hosts: list[Host] = []
    for item in _read(read_text(path, keep_mark=True), path):
        if isinstance(item, Host):
            hosts.append(item)
        elif item.severity == "error":
            raise FileInputError(path, f"{item.message}; {item.fix}", *item.location)
    return hosts


def lint_hostfile(document: Document, world_size: int | None = None) -> list[Finding]:
    """Every finding about a hostfile."""
    items = list(_read(document.text, document.path))
    findings = [item for item in items if isinstance(item, Finding)]
    hosts = [item for item in items if isinstance(item, Host)]
    total = sum(host.slots for host in hosts)
    if hosts and world_size is not None and total < world_size:
        counts = {"total": counted(total, "slot"), "world_size": counted(world_size, "rank")}
        findings.append(_TOO_FEW_SLOTS.found(document.path, Location(1, 1), **counts))
    odd = next((host for host in hosts if host.slots != hosts[0].slots), None)
    if odd is not None:
        names = {"name": odd.name, "slots": odd.slots, "first": hosts[0].name}
        location = Location(odd.line, 1)
        findings.append(_UNEVEN.found(document.path, location, **names, slots_of_first=hosts[0].slots))
    return findings


def _read(text: str, path: str) -> Iterator[Host | Finding]:
    if text.startswith(BYTE_ORDER_MARK):
        yield _BYTE_ORDER_MARK.found(path, Location(1, 1))
    first_lines: dict[str, int] = {}
    lines = 0
    for number, raw in enumerate(text.removeprefix(BYTE_ORDER_MARK).split("\n"), start=1):
        if raw.endswith("\r"):
            yield _LINE_ENDING.found(path, Location(number, len(raw)))
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        lines += 1
        item = _line(line, path, number, raw.index(line) + 1)
        if isinstance(item, Host):
            if item.name in first_lines:
                yield _DUPLICATE.found(
                    path, Location(number, 1), name=item.name, first_lines=first_lines[item.name]
                )
                continue
            first_lines[item.name] = number
        yield item
        if len(first_lines) > MAX_HOSTS:
            yield _TOO_MANY.found(path, Location(number, 1), MAX_HOSTS=MAX_HOSTS)
            return
    if not lines:
        yield _EMPTY.found(path, Location(1, 1))


def _line(line: str, path: str, number: int, column: int) -> Host | Finding:
    match = _LINE.fullmatch(line)
    if match is None:
        return _SYNTAX.found(path, Location(number, column))
    host, rest = match["host"], match["rest"].split("#")[0].strip()
    for row, is_wrong in (
        (_OPTION_AS_HOST, host.startswith("-")),
        (_USER, "@" in host),
        (_IPV6_HOST, _IPV6.fullmatch(host)),
        (_NO_HOST, not _HOST.fullmatch(host)),
    ):
        if is_wrong:
            return row.found(path, Location(number, column))
    slots = re.fullmatch(r"slots=([0-9]{1,9})(?:\s+max_slots=[0-9]{1,9})?", rest)
    at = column + line.index(rest) if rest else column
    if slots is None:
        reads = re.match(r"slots=\d", rest)
        effect = "reads the digits and drops the rest" if reads else "refuses the file"
        return _NO_SLOTS.found(path, Location(number, at), effect=effect)
    count = int(slots.group(1))
    if not 1 <= count <= MAX_SLOTS:
        return _SLOTS.found(path, Location(number, at), count=count, ranks=count or "no", MAX_SLOTS=MAX_SLOTS)
    return Host(name=host, slots=count, line=number)
