"""``zerokit`` called in this process, as a user and as a program call it."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.caches import own_cache_but_traces
from zerokit.cli import run

TINY_LLAMA = Path(__file__).resolve().parents[2] / "examples" / "tiny-llama.json"
"""Of no catalogue: it is traced, once for all tests."""


def move_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into an empty folder, with neither this machine's GPUs nor its cache."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", os.defpath)  # no nvidia-smi of this machine
    own_cache_but_traces(folder, monkeypatch)


def called(*arguments: str, folder: Path, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that is called in a folder."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return code, printed[0], printed[1]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error, in which no argument is still marked."""
    code = run(list(arguments))
    out, err = capsys.readouterr()
    assert not set("⟨⟩⟪⟫") & set(out + err), out + err
    return code, out, err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What ``--json`` prints; the command must end well."""
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    body: dict[str, Any] = json.loads(out)
    return body
