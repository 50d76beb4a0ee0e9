"""Messages on standard error: wrapped at a terminal's width, whole in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.messages import message, width_of, wrapped

LONG = (
    "nothing fits 1 × t4 (15.0 GiB): the closest requires 1,732 GiB of host memory\n"
    "What would make it fit:\n"
    "  - 63 more GPUs (--gpus 64 on 8 nodes): ZeRO-3, optimizer offload to cpu, weight offload to cpu"
)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_is_wider_and_no_word_is_lost(width: int) -> None:
    text = message(LONG, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.split() == f"zerokit: {LONG}".split()
    assert "What would make it fit:" in text.splitlines()
    items = text[text.index("  - 63") :].splitlines()
    assert all(line.startswith("    ") for line in items[1:])


def test_what_is_not_broken() -> None:
    path = "/a/" + "very-long-folder/" * 8 + "ds_config.json:5:37"
    assert f"{path}:" in wrapped(f"{path}: there is no such file", 40).splitlines()
    text = wrapped("there is no plan for these GPUs; make one with `zerokit plan --out x`", 60)
    assert any("`zerokit plan --out x`" in line for line in text.splitlines()[1:])
    assert wrapped(LONG, None) == LONG


def test_the_width(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "log").open("w") as log:
        assert width_of(log.fileno()) is None
        monkeypatch.setenv("COLUMNS", "72")
        assert width_of(log.fileno()) == 72
        monkeypatch.setenv("COLUMNS", "wide")
        assert width_of(log.fileno()) is None
    monkeypatch.delenv("COLUMNS")
    ours, theirs = pty.openpty()
    try:
        for columns, expected in ((57, 57), (9, 40), (0, 80)):
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            assert width_of(theirs) == expected
    finally:
        os.close(ours)
        os.close(theirs)
    assert width_of(theirs) is None  # closed meanwhile


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--params", "70b", "--gpus", "1", "--gpu", "t4"),
        ("plan", "--bs", "4"),
        ("plan", "--model", "llama3", "--gpus", "8", "--gpu", "h200"),
        ("models", "--family", "x"),
        ("emit", "sbatch"),
        ("plan", "--top"),
        ("launch", "--grace", "x", "t.py"),
        ("report", "no-such-run"),
    ],
)
def test_every_error_is_as_wide_as_the_terminal(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(arguments)) in (2, 3)
    whole = capsys.readouterr().err
    monkeypatch.setenv("COLUMNS", "50")
    assert run(list(arguments)) in (2, 3)
    narrow = capsys.readouterr().err
    assert max(map(len, narrow.splitlines())) <= 50
    assert narrow.split() == whole.split()
    assert narrow.startswith(("zerokit: ", f"zerokit {arguments[0]}"))


def test_standard_error_decides_where_standard_output_is_a_pipe() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "zerokit", "plan", "--params", "70b", "--gpus", "1", "--gpu", "t4"],
            stdout=subprocess.PIPE, stderr=theirs, env=environment, check=False, timeout=120,
        )  # fmt: skip
        told = os.read(ours, 1 << 16).decode().splitlines()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 3 and done.stdout == b""
    assert 40 < max(map(len, told)) <= 60
