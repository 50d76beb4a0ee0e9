"""A stranger's working folder through every command: nothing printed raw, read or written outside.

``python -m benchmarks.hostile_files --kinds stranger`` tries 500 names and 200 texts.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support import strangers
from zerokit.messages import COMMANDS


def test_every_command_is_tried() -> None:
    assert {words[0] for words in strangers.commands("x")} >= set(COMMANDS)


@pytest.mark.parametrize("number", range(3))
def test_a_stranger_s_folder_obeys_nobody(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = ("\x1b[2J\n::error::forged", "\u202e\udcff[red]##[error]", "\x9b31m\r::warning::x")[number]
    strangers.lay(tmp_path, name, strangers.texts(60)[35 + number], random.Random(number))
    wrong = {}
    quick = [words for words in strangers.commands(name) if "--model" not in words]  # no torch
    for words in quick[number::3]:
        result = strangers.try_command(tmp_path, words, most_seconds=60)
        if result["wrong"]:
            wrong[ascii(words)] = (result["wrong"], result["crash"])
    assert not wrong
