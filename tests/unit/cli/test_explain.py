"""``zerokit explain``: what is printed, as text, JSON and a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import zerokit
from tests.support.command import as_json, call
from tests.support.snapshots import TRUTH, recorded, unpickled, written


def test_a_terminal_gets_the_answer_first_then_tables(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "explain", str(recorded("oom-fragmented")))
    assert (code, err) == (0, "")
    first, why, fix, *_ = out.splitlines()
    assert first == "GPU 0 had no room for 100.0 MiB in load at /job/jobs.py:438"
    assert why.startswith("PyTorch held 0.27 GiB free, 4.0 MiB of it in one piece")
    assert fix.startswith("fix: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert re.search(r"^  split +0\.27 GiB  free beside blocks in use", out, re.MULTILINE)


def test_json_is_what_the_library_returns(capsys: pytest.CaptureFixture[str]) -> None:
    body = as_json(capsys, "explain", str(recorded("plain")))
    assert body["schema"] == "zerokit.explanation/1"
    assert body == json.loads(json.dumps(zerokit.explain(recorded("plain")).to_dict()))
    (device,) = body["devices"]
    assert device["memory"]["peak_allocated_bytes"] == TRUTH["plain"]["peak_allocated"]


def test_two_snapshots_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = str(recorded("plain")), str(recorded("plain-long"))
    code, out, _ = call(capsys, "explain", before, after)
    assert code == 0
    table = out.partition(f"more than in {before}\n")[2]
    assert re.match(r" +\+\S+ MiB +activations +Block +/job/jobs\.py:127\n", table)


def test_a_page_holds_the_tables_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = unpickled("leak-hook")
    snapshot["device_traces"][0][-400]["frames"] = [
        {"filename": "/job/<script>alert(1)</script>\x1b[2J.py", "line": 1, "name": "<module>"}
    ]
    path, page = written(tmp_path / "leak.pickle", snapshot), tmp_path / "page.html"
    assert call(capsys, "explain", str(path), "--html", str(page))[0] == 0
    text = page.read_text()
    assert "<script" not in text and "\x1b" not in text
    assert "Peak by phase, GPU 0" in text
    assert "Live at the peak of GPU 0, by module" in text
    assert "/job/jobs.py:502" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name one snapshot, or two"),
        (["a", "b", "c"], "name one snapshot, or two"),
        (["absent.pickle"], "absent.pickle: cannot be read: No such file or directory"),
        (["/dev/null"], "/dev/null: is not a regular file"),
        ([__file__], "not a memory snapshot; name a file that torch.cuda.memory._dump_snapshot wrote"),
    ],
)
def test_what_cannot_be_explained_is_named(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "explain", *words)
    assert (code, out) == (2, "")
    assert told in err


def test_a_page_never_replaces_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "oom.pickle").write_bytes(recorded("oom").read_bytes())
    path = str(tmp_path / "oom.pickle")
    code, out, err = call(capsys, "explain", path, "--html", path)
    assert (code, out) == (2, "")
    assert "--html" in err and "would replace" in err
    assert (tmp_path / "oom.pickle").read_bytes() == recorded("oom").read_bytes()
