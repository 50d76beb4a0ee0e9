"""Where people work: folders, standard input, reports, comments, and a section of pyproject.toml."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from zerokit.cli import run

BROKEN = '{\n "train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 7}\n}\n'
GOOD = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with files to check, others, and ignored ones."""
    for name, text in {
        ".gitignore": "ignored/\n*.local.json\n!kept.local.json\n",
        "ds.json": BROKEN,
        "configs/good.json": GOOD,
        "configs/accelerate.yaml": "distributed_type: 'NO'\n",
        "configs/.gitignore": "scratch.json\n",
        "configs/scratch.json": BROKEN,
        "configs/hostfile": "node-1 slots=8\n",
        "ignored/ds.json": BROKEN,
        "x.local.json": BROKEN,
        "kept.local.json": GOOD,
        "package.json": '{"name": "x", "dependencies": {}}',
        "list.json": "[1, 2]",
        "cases.json": '[{"zero_optimization": {"stage": 2}}]',
        "examples.yaml": "rule: |\n  node-1 slots=8\n  zero_optimization: 1\n",
        "hostfile.py": "import os\nx = 1\n",
        "tsconfig.json": '{\n // comments\n "compilerOptions": {}\n}',
        "workflow.yml": "on: push\njobs: {}\n",
        "broken-syntax.json": '{"zero_optimization": {"stage": 2}',
        "node_modules/ds.json": BROKEN,
        "train.py": "print()\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths_of(capsys: pytest.CaptureFixture[str]) -> set[str]:
    return {file["path"] for file in json.loads(capsys.readouterr().out)["files"]}


def test_a_folder_means_the_configurations_below_it(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", ".", "--json"]) == 2
    assert paths_of(capsys) == {
        "ds.json", "configs/good.json", "configs/accelerate.yaml", "configs/hostfile", "kept.local.json",
        "broken-syntax.json",
    }  # fmt: skip
    assert run(["check", "configs", "--json"]) == 0
    assert "configs/scratch.json" not in paths_of(capsys)
    assert run(["check", "ignored", "x.local.json", "--json"]) == 2
    assert paths_of(capsys) == {"ignored/ds.json", "x.local.json"}, "a named folder is read though ignored"


def test_what_is_no_configuration_is_skipped_and_counted(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "."]) == 2
    assert "skipped 6 files that are no configurations" in capsys.readouterr().out
    assert run(["check", "configs"]) == 0
    assert "skipped" not in capsys.readouterr().out
    assert run(["check", "hostfile.py"]) == 2
    assert capsys.readouterr().out.count(": error:") == 1


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for text, code in ((BROKEN, 2), (GOOD, 0), ("distributed_type: ZERO\n", 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(["check", "-", "--json"]) == code
        assert paths_of(capsys) == {"<stdin>"}
    assert run(["check", "-", "--fix"]) == 2
    assert run(["check"]) == 2


def test_pyproject_says_what_the_command_line_does_not(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "pyproject.toml").write_text(
        '[tool.zerokit.check]\nignore = ["wrong-value"]\nexclude = ["broken-*.json"]\nstrict = true\n'
    )
    assert run(["check", ".", "--json"]) == 0
    assert "broken-syntax.json" not in paths_of(capsys)
    (tree / "pyproject.toml").write_text("[tool.zerokit.check]\nignored = []\n")
    assert run(["check", "."]) == 2
    assert "tool.zerokit.check.ignored is not known" in capsys.readouterr().err
    (tree / "pyproject.toml").write_text("[tool.zerokit.check]\nworld-size = 4\n")
    (tree / "batch.json").write_text(GOOD[:-1] + ', "train_batch_size": 6, "gradient_accumulation_steps": 1}')
    assert run(["check", "batch.json"]) == 2
    assert run(["check", "batch.json", "--world-size", "6"]) == 0
