"""Rehearsals that are kept: told again where nothing changed, made anew where anything did."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import called
from tests.support.packages import needs
from zerokit.catalog import gpus
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.ranks import rehearse
from zerokit.script.entry_points import Target

pa = pytest.importorskip("pyarrow")
needs("torch")

SCRIPT = """
import json, os, sys
import pyarrow.parquet as pq
import torch
from own.layers import WIDTH

rows = pq.read_table(sys.argv[1] + "/part.parquet").num_rows + pq.read_table("fixed.parquet").num_rows
width = WIDTH + rows + json.load(open("settings.json"))["more"] + int(os.environ.get("MORE", "0"))
width += sum(os.path.getsize(os.path.join("texts", name)) for name in os.listdir("texts"))
width += 1024 * os.path.exists("wide")
try:
    import late
except ImportError:
    late = None
model = torch.nn.Linear(width, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
open("written.txt", "w").write("by the script")
"""


def table(path: Path, rows: int) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"row": list(range(rows))}), path)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    for name in ("own", "texts", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "own" / "layers.py").write_text("WIDTH = 512\n")
    (folder / "settings.json").write_text('{"more": 8}')
    (folder / "texts" / "a.txt").write_text("x" * 64)
    table(folder / "data" / "part.parquet", 100)
    table(folder / "fixed.parquet", 10)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def again(folder: Path, *options: str, arguments: tuple[str, ...] = ("data",), **environment: str) -> Any:
    code, out, err = called(
        "rehearse", "--json", "--gpu", "h200", *options, "train.py", *arguments, folder=folder, **environment
    )
    assert code == 0, err
    return {**json.loads(out), "err": err}


def width(said: dict[str, Any]) -> int:
    """Of the layer: 1,024 outputs in fp32."""
    return max(row["bytes"] for row in said["ranks"][0]["at_peak"] if row["what"] == "model") // 4096


def test_the_least_recently_used_go(work: Path) -> None:
    folder = work.parent / "cache" / "zerokit" / "rehearsals"
    folder.mkdir(parents=True)
    for number in range(520):
        path = folder / f"{number:032x}.json.z"
        path.write_bytes(b"of an older release")
        os.utime(path, (number, number))
    again(work)
    left = {path.name for path in folder.iterdir()}
    assert len(left) == 500 and f"{21:032x}.json.z" in left and f"{20:032x}.json.z" not in left
    assert again(work)["kept_at"] is not None


def test_an_unchanged_rehearsal_is_told_again_and_a_changed_one_is_made_anew(work: Path) -> None:
    first = again(work)
    assert first["kept_at"] is None
    (work / "train.log").write_text("what nobody read")
    (work / "train.py").touch()
    told = again(work)
    assert told["kept_at"] is not None and "nothing that it read has changed (--no-cache" in told["err"]
    assert "optimizer step" not in told["err"]
    same = ("err", "kept_at")
    assert {k: v for k, v in told.items() if k not in same} == {
        k: v for k, v in first.items() if k not in same
    }
    changes: list[tuple[Callable[[], Any], int]] = [
        (lambda: (work / "own" / "layers.py").write_text("WIDTH = 528\n"), 16),
        (lambda: table(work / "data" / "part.parquet", 116), 16),
        (lambda: (work / "texts" / "b.txt").write_text("x" * 32), 32),
        (lambda: (work / "wide").write_text(""), 1024),
        (lambda: (work / "late.py").write_text(""), 0),
        (lambda: (work / "train.py").write_text(SCRIPT.replace("WIDTH +", "WIDTH + 16 +")), 16),
    ]
    before = first
    for change, wider in changes:
        change()
        now = again(work)
        assert now["kept_at"] is None, wider
        assert width(now) - width(before) == wider
        before = now
    assert width(again(work, MORE="16")) - width(before) == 16
    for other in (("--vram", "90GiB"), ("--no-cache",)):
        assert again(work, *other)["kept_at"] is None
    assert again(work)["kept_at"] is not None


def test_kept_answers_are_the_users_alone_and_hold_no_secret(work: Path) -> None:
    token = "hf_" + "a1B2" * 8
    again(work, arguments=("data", "--hub_token", token), HF_TOKEN=token, DB_PASSWORD="correct-horse-battery")
    (kept,) = (work.parent / "cache" / "zerokit" / "rehearsals").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    text = zlib.decompress(kept.read_bytes()).decode()
    assert str(work / "settings.json") in text
    assert token not in text and "correct-horse" not in text
    kept.write_bytes(kept.read_bytes()[:-3])
    assert again(work, arguments=("data", "--hub_token", token))["kept_at"] is None  # it was damaged
    other = "hf_" + "c3D4" * 8
    assert again(work, arguments=("data", "--hub_token", other), HF_TOKEN=other)["kept_at"] is not None
    named = work / token
    (work / "data").rename(named)
    again(work, arguments=(token,))
    assert len(list(kept.parent.iterdir())) == 1  # what it read is named by a secret


@pytest.mark.slow
def test_what_a_limit_ended_or_a_change_met_is_not_kept(work: Path) -> None:
    target = Target(script="train.py", module=None, arguments=("data",))
    request = RehearsalRequest(target=target, gpu=gpus.load("h200"), gpus=1)
    assert not rehearse(replace(request, limit_seconds=0.5)).complete
    folder = work.parent / "cache" / "zerokit" / "rehearsals"
    assert not folder.exists()

    def meanwhile(line: str) -> None:
        (work / "settings.json").write_text('{"more": 40}')

    assert rehearse(request, meanwhile).complete
    assert not folder.exists()
    assert rehearse(request).kept_at is None
    assert rehearse(request).kept_at is not None
