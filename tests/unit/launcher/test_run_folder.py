"""Run folders are never shared."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from zerokit.errors import InputError
from zerokit.launcher.run_folder import make_run_folder


def test_run_folders_are_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        first, second = (make_run_folder(None, "a b/träin.py", stack) for _ in range(2))
        assert first != second and first.parent == second.parent == tmp_path / "runs"
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot be made"):
            make_run_folder("file", "x.py", stack)


@pytest.mark.parametrize(
    ("script", "end"), [("trl.scripts.sft", "-trl.scripts.sft"), ("b/train.py", "-train"), ("run", "-run")]
)
def test_a_run_folder_is_named_after_the_whole_module(
    script: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        assert make_run_folder(None, script, stack).name.endswith(end)


def test_an_earlier_run_that_is_moved_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    for number in range(2):
        with ExitStack() as stack:
            folder = make_run_folder(str(tmp_path / "run"), "t.py", stack, said.append)
            assert len(said) == number
            (folder / "report.json").write_text(str(number))
    assert "previous-1 now" in said[0]
    assert (folder / "previous-1" / "report.json").read_text() == "0"
