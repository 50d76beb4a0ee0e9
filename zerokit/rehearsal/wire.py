"""JSON and open files over a Unix socket, between a process and the one that it started."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_FILES = 4


def send(wire: socket.socket, value: Any, files: Sequence[int] = ()) -> None:
    """Send a value, and descriptors of open files. Raises OSError: nobody is at the other end."""
    text = json.dumps(value).encode()
    socket.send_fds(wire, [_LENGTH.pack(len(text))], files)
    wire.sendall(text)


def receive(wire: socket.socket) -> tuple[Any, list[int]]:
    """The next value, and its files; None: the other end is closed. Raises OSError: as of a time-out."""
    head, files, _, _ = socket.recv_fds(wire, _LENGTH.size, _MOST_FILES)
    while head and len(head) < _LENGTH.size and (part := wire.recv(_LENGTH.size - len(head))):
        head += part
    if len(head) < _LENGTH.size:
        return None, files
    (length,), text = _LENGTH.unpack(head), b""
    while len(text) < length and (part := wire.recv(length - len(text))):
        text += part
    return (json.loads(text) if len(text) == length else None), files
