"""Ports: free ones, reserved ones, and who holds a taken one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from zerokit.errors import InputError, NodeUnusable
from zerokit.launcher import ports


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


def test_locks_of_ports_are_this_users_alone_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else made the folder first, with links in it and its locks held."""
    victim, theirs = tmp_path / "victim", tmp_path / "runtime" / "zerokit"
    victim.write_text("precious")
    theirs.mkdir(parents=True)
    theirs.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "zerokit" / f"ports-{socket.gethostname()}"
    with ports.reserve() as port:
        assert [path.name for path in folder.iterdir()] == [f"{port}.lock"]
        (folder / "25001.lock").symlink_to(victim)
        (folder / "25002.lock").write_text("")  # of a launch that was killed
        with ports.reserve():
            assert not (folder / "25002.lock").exists()
    (folder / "25001.lock").unlink()
    assert not list(folder.iterdir()) and not list(theirs.iterdir())
    assert victim.read_text() == "precious"


def test_without_a_folder_for_locks_ports_are_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerokit.launcher.ports.private_folder", lambda name: None)
    with ports.reserve() as port, ports.reserve(port) as again:
        assert port == again
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port(port: int) -> None:
    with pytest.raises(InputError, match="1 to 65535"), ports.reserve(port):
        pass
