"""Ports: free ones, reserved ones, and who holds a taken one."""

from __future__ import annotations

import os
import socket

import pytest

from zerokit.errors import InputError, NodeUnusable
from zerokit.run import ports


def test_two_reservations_differ() -> None:
    with ports.reserve() as first, ports.reserve() as second:
        assert first != second
        assert ports.is_free(first) and ports.is_free(second)
        with pytest.raises(NodeUnusable, match="another zerokit"), ports.reserve(first):
            pass
    with ports.reserve(first) as again:
        assert again == first


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_taken_port(family: socket.AddressFamily, address: str) -> None:
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"no {address} here")
    with server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(NodeUnusable, match=f"pid {os.getpid()}"), ports.reserve(port):
            pass
    assert ports.is_free(port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port(port: int) -> None:
    with pytest.raises(InputError, match="1 to 65535"), ports.reserve(port):
        pass
