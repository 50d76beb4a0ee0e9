"""Files written whole, and folders of users without a home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerokit.files import cache_folder, home_folder, read_regular, write_whole


def test_a_file_is_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old ä\udcff")
    assert path.read_bytes() == "old ä".encode() + b"\xff"
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    with pytest.raises(OSError, match=r"Is a directory|Directory not empty|File exists"):
        write_whole(tmp_path, "x")
    assert path.read_bytes() == "old ä".encode() + b"\xff" and list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_or_written_through(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    write_whole(link, "new")
    assert victim.read_text() == "precious" and not link.is_symlink()
    link.unlink()
    link.symlink_to(victim)
    write_whole(link, "new", through_links=True)
    assert victim.read_text() == "new" and link.is_symlink()


def test_the_mode_is_that_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("home", ["~nouser", "relative", "~"])
def test_a_user_without_a_home(home: str) -> None:
    found = cache_folder({"HOME": home})
    assert found.is_absolute() and not found.exists() and not home_folder({"HOME": home}).exists()
    with pytest.raises(OSError, match=r".*"):
        found.mkdir(parents=True)
    assert cache_folder({"HOME": home, "XDG_CACHE_HOME": "/x"}) == Path("/x/zerokit")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("fifo", "regular"),
        ("/dev/zero", "leads out"),
        ("../x", "leads out"),
        ("loop", "symbolic"),
        ("big", "bytes"),
    ],
)
def test_a_stranger_s_file_neither_hangs_nor_leads_elsewhere(
    kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = tmp_path / "folder", tmp_path / "folder" / "loop"
    folder.mkdir()
    (tmp_path / "x").write_text("secret")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "big":
        path.write_bytes(b"x" * 99)
    else:
        path.symlink_to(kind)
    with pytest.raises(OSError, match=says):
        read_regular(path, 98)
    if kind == "../x":  # from where both are below, and of the Hub's cache, it is read
        monkeypatch.chdir(tmp_path)
        assert read_regular(path, 98) == b"secret"
        with pytest.raises(OSError, match=says):
            read_regular(path, 98, folder)
