"""Messages on standard error: wrapped at a terminal's width, whole in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
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


PLAN_AGAIN = [
    "zerokit", "plan", "--recipe", "p4090/plan.yaml", "--out", "p4090", "model=", "seq_len=", "--",
    "examples/train.py", "--run_name", "a b", "--learning_rate", "2e-5",
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    "text",
    ["with the script, some minutes: {}", "these:\n  - as it is: {}", "again: `{}`, or run it all the same"],
)
def test_a_command_is_pasted_as_it_is_shown(text: str, width: int) -> None:
    said = f"it was not rehearsed; to plan {text}"
    shown = message(said.format(shlex.join(PLAN_AGAIN)), width)
    assert max(map(len, shown.splitlines())) <= width
    before, _, rest = shown.partition("zerokit plan")
    command, _, after = rest.partition("`")
    words = ["bash", "-c", f"printf '%s\\n' zerokit plan{command}"]
    typed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert typed.splitlines() == PLAN_AGAIN
    mark = "`" if after else ""
    assert " ".join(f"{before}{{}}{mark}{after}".split()) == " ".join(f"zerokit: {said}".split())


def test_what_is_said_after_a_colon_is_no_command_unless_it_ends_the_message() -> None:
    text = (
        "an error: zerokit launch starts the ranks itself; leave the script's launcher out, and its options"
    )
    assert "\\" not in message(text, 40)
    assert message(text, 40).split() == f"zerokit: {text}".split()
    install = message(
        "not supported (tested: 0.18 and 0.19): pip install 'deepspeed>=0.19,<0.20', or ZeRO-3", 60
    )
    assert "pip install 'deepspeed>=0.19,<0.20'," in install


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
