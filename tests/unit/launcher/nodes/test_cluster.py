"""Hostfiles: what is read, and any bytes give hosts or a zerokit error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerokit.errors import FileInputError, InputError
from zerokit.launcher.nodes.cluster import choose_hosts, read_hostfile
from zerokit.linter.hostfile import MAX_SLOTS


def test_a_good_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"# my nodes\r\nnode-1 slots=8\r\n\r\n  10.0.0.2\tslots=4 # the small one\r\n")
    hosts = read_hostfile(path)
    assert [(host.name, host.slots, host.line) for host in hosts] == [("node-1", 8, 2), ("10.0.0.2", 4, 4)]
    assert [host.name for host in choose_hosts(hosts, 1)] == ["node-1"]
    with pytest.raises(InputError, match="names 2 hosts"):
        choose_hosts(hosts, 3)


@pytest.mark.parametrize("kind", ["folder", "fifo", "device"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    import os

    path = tmp_path / "hosts"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = Path("/dev/zero")
    with pytest.raises(InputError, match="not a file"):
        read_hostfile(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xef\xbb\xbfnode-1 slots=8\n", "1:1: a byte order mark"),
        (b"node-1 slots=8\n::1 slots=8\n", "2:1: the host is an IPv6 address"),
        (b"node-1 slots=8\nnode-1 slots=8\n", "2:1: node-1 is already in line 1"),
        (b"node-1 slots=0\n", "1:8: 0 slots"),
        (b"node-1 slots=1000000000\n", "1:8: "),
        (b"node-1 slots=-1\n", "1:"),
        (b"node-1\n", "1:"),
        (b"node-1 slots=4 slots=8\n", "1:"),
        (
            b"-oProxyCommand=x slots=1\n",
            "1:1: the host begins with -, and would be given to ssh as an option",
        ),
    ],
)
def test_the_first_error_names_its_place(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(text)
    with pytest.raises(FileInputError) as caught:
        read_hostfile(path)
    assert f"{path}:{message}" in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200) | st.text("ab-. slot=0123456789#\r\n", max_size=80).map(str.encode))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-hosts"
    path.write_bytes(data)
    try:
        hosts = read_hostfile(path)
    except InputError:
        return
    for host in hosts:
        assert 1 <= host.slots <= MAX_SLOTS
        assert not host.name.startswith("-") and not set(host.name) & set(" ;$`'\"\\|&<>@:/")
