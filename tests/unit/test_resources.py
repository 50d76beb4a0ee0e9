"""The data folders are found in a checkout and in an installed package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zerokit import resources


@pytest.mark.parametrize("kind", resources.KINDS)
def test_in_the_checkout_the_top_level_folder_is_used(kind: str) -> None:
    found = resources.folder(kind)
    assert found.is_dir()
    assert found.name == kind


def _copy_package(to: Path) -> Path:
    source = Path(resources.__file__).parent
    return shutil.copytree(source, to / "zerokit", ignore=shutil.ignore_patterns("__pycache__", "_data"))


def _ask(site: Path, kind: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from zerokit.resources import folder; "
    return subprocess.run(
        [sys.executable, "-S", "-c", code + f"print(folder({kind!r}))"], capture_output=True, text=True
    )


def test_an_installed_package_uses_its_own_data(tmp_path: Path) -> None:
    package = _copy_package(tmp_path)
    (package / "_data" / "recipes").mkdir(parents=True)
    assert _ask(tmp_path, "recipes").stdout.strip() == str((package / "_data" / "recipes").resolve())


def test_a_stray_folder_beside_the_package_is_not_taken(tmp_path: Path) -> None:
    _copy_package(tmp_path)
    (tmp_path / "templates").mkdir()
    answer = _ask(tmp_path, "templates")
    assert answer.returncode != 0
    assert "reinstall zerokit" in answer.stderr


def test_an_unknown_kind_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no data folder"):
        resources.folder("passwords")
