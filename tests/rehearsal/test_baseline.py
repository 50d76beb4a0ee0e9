"""``rehearse --baseline``: what a change of a script costs is found, and the line that holds it is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import called
from tests.support.rehearsals import SCRIPTS, rehearse

_BEFORE = (SCRIPTS / "plain_loop.py").read_text()
_COPIES = (
    "optimizer = torch",
    "copies = [p.detach().double() for p in model.parameters()]\noptimizer = torch",
)
_SMALL_COPIES = (
    "optimizer = torch",
    "kept = [torch.zeros(1 << 13, device='cuda') for _ in range(3000)]\noptimizer = torch",
)
_LARGER_BATCH = ("batch_size=64", "batch_size=1024")


def _rehearsed(folder: Path, text: str, *options: str) -> tuple[int, dict, str]:
    (folder / "train.py").write_text(text)
    return rehearse(folder, "--gpu", "h200", *options, "train.py", "4")


def test_what_grew_is_named_by_its_line_and_what_did_not_is_quiet(tmp_path: Path) -> None:
    gate = ("--baseline", "baseline.json")
    code, said, _ = _rehearsed(tmp_path, _BEFORE, *gate)
    assert (code, said["baseline"]["written"]) == (0, True)
    kept = (tmp_path / "baseline.json").read_bytes()
    code, said, _ = _rehearsed(tmp_path, f"# a comment moves every line\n{_BEFORE}", *gate)
    assert (code, said["baseline"]["grown"], said["baseline"]["written"]) == (0, [], False)
    assert said["baseline"]["compared"] > 5
    (tmp_path / "elsewhere").mkdir()
    code, said, _ = _rehearsed(tmp_path / "elsewhere", _BEFORE, "--baseline", str(tmp_path / "baseline.json"))
    assert (code, said["baseline"]["grown"]) == (0, [])  # as on another machine
    for (old, new), line in (
        (_COPIES, "train.py:10"), (_SMALL_COPIES, "train.py:10"), (_LARGER_BATCH, "train.py:14"),
    ):  # fmt: skip
        changed = _BEFORE.replace(old, new)
        assert changed != _BEFORE
        code, said, _ = _rehearsed(tmp_path, changed, *gate)
        (rank,) = said["ranks"]
        grown = said["baseline"]["grown"]
        peak = next(one for one in grown if one["phase"] == rank["peak_phase"])
        assert code == 15 and peak["now"] == rank["peak_allocated_bytes"] > peak["before"]
        named = {part["location"] for one in grown for part in one["parts"]}
        assert line in named
        code, _, _ = _rehearsed(tmp_path, changed, *gate, "--max-growth", "1000%")
        assert code == 0
    assert (tmp_path / "baseline.json").read_bytes() == kept


def test_a_job_of_github_gets_annotations_and_a_summary(tmp_path: Path) -> None:
    gate = ("--baseline", "baseline.json", "--markdown", "summary.md")
    _rehearsed(tmp_path, _BEFORE, *gate)
    (tmp_path / "train.py").write_text(_BEFORE.replace(*_COPIES))
    words = ("rehearse", "--gpu", "h200", *gate, "train.py", "4")
    code, out, _ = called(
        *words, folder=tmp_path, OMP_NUM_THREADS="1", HOME=os.environ["XDG_CACHE_HOME"], GITHUB_ACTIONS="true"
    )
    assert code == 15
    annotations = [line for line in out.splitlines() if line.startswith("::error ")]
    assert any("file=train.py,line=10,title=zerokit rehearse" in line for line in annotations)
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("### Rehearsal of train.py") == 2 and "train.py:10" in summary


@pytest.mark.parametrize(
    ("file", "options", "why"),
    [
        ("{", (), "not a complete result"),
        ("{}", (), "not a complete result"),
        ('{"schema": "zerokit.rehearsal/1", "ranks": [1]}', (), "not a complete result"),
        (None, ("--max-growth", "2"), "such as 2%"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, file: str | None, options: tuple, why: str) -> None:
    if file is not None:
        (tmp_path / "baseline.json").write_text(file)
    code, _, err = _rehearsed(tmp_path, _BEFORE, "--baseline", "baseline.json", *options)
    assert code == 2 and why in err
    assert file is None or (tmp_path / "baseline.json").read_text() == file


def test_what_json_prints_is_a_baseline_of_its_own_gpu_alone(tmp_path: Path) -> None:
    _, said, _ = _rehearsed(tmp_path, _BEFORE)
    (tmp_path / "baseline.json").write_text(json.dumps(said))
    gate = ("--baseline", "baseline.json")
    code, again, _ = _rehearsed(tmp_path, _BEFORE, *gate)
    assert (code, again["baseline"]["grown"]) == (0, []) and again["baseline"]["compared"] > 5
    code, _, err = _rehearsed(tmp_path, _BEFORE, *gate, "--gpu", "a100-80gb")
    assert code == 2 and "GPU h200, and a100" in err
    code, _, err = _rehearsed(tmp_path, _BEFORE, "--max-growth", "2%")
    assert code == 2 and "--baseline" in err


def test_files_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--baseline", "--markdown"):
        code, _, err = _rehearsed(tmp_path, _BEFORE, option, "file/below")
        assert code == 74 and "file/below: cannot be written" in err
    code, _, _ = _rehearsed(
        tmp_path, _BEFORE, "--baseline", "new/baseline.json", "--markdown", "other/summary.md"
    )
    assert (
        code == 0 and (tmp_path / "new/baseline.json").is_file() and (tmp_path / "other/summary.md").is_file()
    )
