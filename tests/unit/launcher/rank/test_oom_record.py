"""A save that fills its disk is told of as such."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerokit.launcher.rank.oom_record import full_disk

torch = pytest.importorskip("torch")


def failed_save(path: str) -> BaseException:
    with pytest.raises((RuntimeError, OSError)) as caught:
        torch.save(torch.zeros(1_000_000), path)
    return caught.value


def test_a_failed_save_names_its_folder_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.pt").symlink_to("/dev/full")  # each write ends as on a full disk
    error = failed_save(str(tmp_path / "model.pt"))
    assert full_disk(error, str(error)) is None  # this disk has room
    observed: list[str] = []

    def nothing_left(folder: str) -> SimpleNamespace:
        observed.append(folder)
        return SimpleNamespace(f_bavail=0, f_frsize=4096, f_flag=0)

    monkeypatch.setattr(os, "statvfs", nothing_left)
    assert full_disk(error, str(error)) == f"the disk of {tmp_path} is full"
    assert observed == [str(tmp_path)]
    assert full_disk(error, "another error") is None
