"""Versions of the machine that a run will have, beside the ones here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.errors import InputError
from zerokit.rehearsal.versions import differences, read

REQUIREMENTS = """
# pip freeze
torch==2.11.0+cu130
transformers[torch] == 5.17.0 ; python_version >= "3.10"
peft>=0.17
Liger-Kernel==0.8.5
flash_attn @ file:///wheels/flash_attn.whl
numpy==2.0.0
"""
UV_LOCK = """
version = 1
[[package]]
name = "torch"
version = "2.11.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "numpy" }]

[[package]]
name = "transformers"
version = "5.17.0"
"""
PYLOCK = UV_LOCK.replace("[[package]]", "[[packages]]").replace("version = 1", 'lock-version = "1.0"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (REQUIREMENTS, {"torch": "2.11.0+cu130", "transformers": "5.17.0", "liger_kernel": "0.8.5"}),
        (UV_LOCK, {"torch": "2.11.0", "transformers": "5.17.0"}),
        (PYLOCK, {"torch": "2.11.0", "transformers": "5.17.0"}),
        (json.dumps([{"name": "flash-attn", "version": "2.8.0"}]), {"flash_attn": "2.8.0"}),
        (
            json.dumps({"schema": "zerokit.doctor/1", "packages": {"torch": "2.11.0", "trl": None}}),
            {"torch": "2.11.0"},
        ),
    ],
)
def test_versions_are_read_from_what_people_have(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    path = tmp_path / "versions"
    path.write_text(text)
    assert read(path) == found


@pytest.mark.parametrize("text", ["", "torch>=2", "{", '{"schema": "zerokit.doctor/1"}', "numpy==2.0.0"])
def test_a_file_without_such_versions_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "versions"
    path.write_text(text)
    with pytest.raises(InputError, match="versions"):
        read(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "nothing")


def test_builds_of_one_version_are_alike_and_the_rest_is_told() -> None:
    here = {"torch": "2.13.0+cpu", "transformers": "5.23.0"}
    there = {"torch": "2.13.0+cu130", "transformers": "5.17.0", "flash_attn": "2.8.0"}
    transformers, flash = differences(here, there, "uv.lock")
    assert transformers.startswith("transformers is 5.23.0 here and 5.17.0 in uv.lock")
    assert flash.startswith("flash_attn 2.8.0 (uv.lock) is not installed here")
