"""Where people work: folders, standard input, reports, comments, and a section of pyproject.toml."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.linter.discover import Ignored, files_of

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


HOSTILE = "a\x1b[2J\n::error::forged \u202e\x9b.json"


def test_links_out_of_the_folder_are_neither_read_nor_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, fixable = tmp_path / "pull", '{"zero_optimization": {"stagee": 2}}'
    folder.mkdir()
    (tmp_path / ".netrc").write_text("machine h login me password s3cretpw\n")
    (tmp_path / "theirs.json").write_text(fixable)
    (folder / "hostfile").symlink_to("../.netrc")
    (folder / "ds.json").symlink_to("../theirs.json")
    block = "deepspeed_config:\n  deepspeed_hostfile: ../.netrc\n  deepspeed_config_file: ../.netrc\n"
    (folder / "acc.yaml").write_text(f"distributed_type: DEEPSPEED\n{block}")
    monkeypatch.chdir(folder)
    for arguments in (["."], [".", "--fix"], ["hostfile"], ["ds.json", "--fix"], ["../.netrc"], ["acc.yaml"]):
        run(["check", *arguments])
        told = "".join(capsys.readouterr())
        assert "s3cretpw" not in told and ("skipped" in told) == (arguments[0] in (".", "acc.yaml"))
    assert (tmp_path / "theirs.json").read_text() == fixable


@pytest.mark.parametrize("style", ["text", "json", "github", "sarif", "junit"])
def test_a_hostile_name_is_shown_escaped_in_every_form(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / HOSTILE).write_text(BROKEN)
    (tmp_path / "\udcff\ufffe.json").write_text(BROKEN)
    (tmp_path / "n.json").write_text('{"zero_optimization": {"a\\u001b\\u202e\\n::error::b": 1}}')
    monkeypatch.chdir(tmp_path)
    assert run(["check", "--format", style, "."]) == 2
    told = "".join(capsys.readouterr())
    assert not set("\x1b\u202e\x9b\ufffe\udcff") & set(told)
    ours = ("::error file=", "::warning file=")
    assert all(line.startswith(ours) for line in told.splitlines() if line.lstrip().startswith("::"))


def test_a_gitignore_that_never_ends_is_passed_over(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / ("a" * 120 + ".json")).write_text(GOOD)
    (tmp_path / "a" / ".gitignore").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "b" / ".gitignore")
    (tmp_path / "c" / ".gitignore").write_text("a*" * 40 + "b\n" + "**/a" * 40 + "\n" + "[" * 99 + "\n")
    assert len(files_of([str(tmp_path)]).paths) == 3


def test_patterns_are_git_s_own(tmp_path: Path) -> None:
    """2,000 answers of ``git check-ignore``, for patterns and paths at random."""
    chance = random.Random(7)
    for number in range(20):
        repository = tmp_path / str(number)
        repository.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
        patterns = [
            chance.choice(("", "", "!", "/"))
            + "/".join(
                chance.choice(("a", "b*", "*", "**", "?b", "[ab]", "*.j", "\\a", "a*b*")) for _ in range(n)
            )
            + chance.choice(("", "", "/"))
            for n in chance.choices((1, 1, 2, 3), k=4)
        ]
        (repository / ".gitignore").write_text("\n".join(patterns) + "\n")
        paths = [
            "/".join(chance.choices(("a", "b", "ab", "bab", "x.j"), k=chance.randint(1, 3)))
            for _ in range(100)
        ]
        asked = subprocess.run(
            ["git", "check-ignore", "--stdin"], cwd=repository, input="\n".join(paths), text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        theirs, ignored = set(asked.stdout.split()), Ignored(patterns)
        for path in paths:
            parts = path.split("/")
            ours = any(
                ignored.says(parts[:end], is_folder=end < len(parts)) for end in range(1, len(parts) + 1)
            )
            assert ours == (path in theirs), (patterns, path)
