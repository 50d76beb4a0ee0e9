"""What commands answer, word for word: ``tests/texts/*.txt``.

    python -m tests.test_texts --write [NAME…]      writes the present answers; read the diff

A line ``$ zerokit …`` is a command, below it stands what it prints: standard output, then standard error.
``# 2`` behind it is its exit code. ``@ PATH`` writes the indented lines below it into a file. Other lines
that begin with ``#`` say what the commands below them show. All commands of a file run in one empty folder,
on a machine without a GPU.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import DROPPED, QUIET_ENVIRONMENT
from tests.support.command import called

TEXTS = Path(__file__).parent / "texts"
EXIT = re.compile(r"\s+# (\d+)$")
DATE = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b")


def answer(line: str) -> str:
    """The line of a command, with its exit code, and what it prints."""
    command = EXIT.sub("", line)
    code, out, err = called(*shlex.split(command)[2:], folder=Path.cwd())
    printed = out + err
    assert not set("⟨⟩⟪⟫") & set(printed), command
    printed = DATE.sub("some day", printed.replace(str(Path.cwd()), "~"))
    lines = [row.rstrip() for row in printed.splitlines()]
    assert not [row for row in lines if row[:2] in ("$ ", "@ ", "# ")], f"{command}: give it --out"
    return "\n".join([f"{command}  # {code}" if code else command, *lines])


def fresh(text: str) -> Iterator[str]:
    """The file as it should stand, block by block; its files are written and its commands run in order."""
    for block in re.split(r"^(?=[$@#] )", text, flags=re.MULTILINE):
        first, _, rest = block.rstrip("\n").partition("\n")
        if first.startswith("$ "):
            yield answer(first) + "\n" * (len(block) - len(block.rstrip("\n")) or 1)
            continue
        if first.startswith("@ "):
            path = Path(first[2:])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(row.removeprefix("  ") for row in rest.splitlines()) + "\n")
        yield block


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.txt")), ids=lambda path: path.stem)
def test_commands_answer_so(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)  # no nvidia-smi of this machine
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = path.read_text()
    assert "".join(fresh(text)) == text, f"read what changed: python -m tests.test_texts --write {path.stem}"


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        raise SystemExit(__doc__)
    for name in [name for name in os.environ if name in DROPPED or name.startswith("ZEROKIT_")]:
        del os.environ[name]
    os.environ.update(QUIET_ENVIRONMENT, PATH=os.defpath)
    for path in [TEXTS / f"{name}.txt" for name in sys.argv[2:]] or sorted(TEXTS.glob("*.txt")):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
            os.chdir(folder)
            path.write_text("".join(fresh(path.read_text())))
