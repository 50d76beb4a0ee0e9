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
        space = {"line": guesses.Modules().script_line}
        exec(compile(_ASK, file, "exec"), space)  # noqa: S102 (frames of files that are not here)
        asks.append(space["call"])
    of_script, of_library, of_torch = asks
    asked = partial(of_library, of_torch)
    assert of_script(asked) == f"{script}:2"
    guesses.start_in("/home/me")
    assert of_script(asked) == f"{script.removeprefix('/home/me/')}:2"


def test_each_call_of_a_module_has_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is around a module is looked for once a call, and not again for each operator in it."""
    modules = guesses.Modules()

    def called(forward):  # as the function around each module's call
        modules.enter(forward)
        try:
            return forward()
        finally:
            modules.leave()

    monkeypatch.setattr(guesses.Modules, "code", called.__code__)
    monkeypatch.setattr(guesses, "_OURS", __file__)
    guesses._place.cache_clear()
    source = (
        "def inner():\n    return [line(), line()]\n"
        "def outer():\n    first = called(inner)\n    return first + called(inner)\n"
        "def train():\n    return called(outer) + [line()]\n"
    )
    file = "/home/me/train.py"
    space = {"line": modules.script_line, "called": called}
    exec(compile(source, file, "exec"), space)  # noqa: S102
    assert space["train"]() == [f"{file}:2"] * 4 + [f"{file}:7"]
    library = "/env/lib/python3.12/site-packages/trl/model.py"
    exec(compile("def layer():\n    return [line(), line()]\n", library, "exec"), space)  # noqa: S102
    space["inner"] = space["layer"]
    assert space["train"]() == [f"{file}:4"] * 2 + [f"{file}:5"] * 2 + [f"{file}:7"]
    guesses._place.cache_clear()
