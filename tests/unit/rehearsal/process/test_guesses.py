"""Whose line asked: the script's, wherever it lies, before a library's."""

from __future__ import annotations

from functools import partial

import pytest

from zerokit.rehearsal.process import guesses

_ASK = "def call(other=None):\n    return other() if other else line()\n"


@pytest.mark.parametrize("script", ["/home/me/torch/train.py", "/home/me/train.py"])
def test_the_innermost_line_of_the_script_is_named(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "_started_in", [])
    library, torchs = (
        "/env/lib/python3.12/site-packages/trl/t.py",
        "/env/lib/python3.12/site-packages/torch/n.py",
    )
    asks = []
    for file in (script, library, torchs):
        space = {"line": guesses.script_line}
        exec(compile(_ASK, file, "exec"), space)  # noqa: S102 (frames of files that are not here)
        asks.append(space["call"])
    of_script, of_library, of_torch = asks
    asked = partial(of_library, of_torch)
    assert of_script(asked) == f"{script}:2"
    guesses.start_in("/home/me")
    assert of_script(asked) == f"{script.removeprefix('/home/me/')}:2"
