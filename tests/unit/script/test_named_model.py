"""The model that the arguments of a script name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import write_script
from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.cli import run
from zerokit.script.named_model import folder_meant, named_model

OWN = "    parser.add_argument('--model', default={})\n"


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        (
            TRAINER,
            "--model_name_or_path gpt2 --output_dir out",
            ("gpt2", "train.py's --model_name_or_path gpt2"),
        ),
        (RAW, "--model-name=gpt2", ("gpt2", "train.py's --model-name gpt2")),
        (RAW, "--steps 3", None),
        (RAW + OWN.format("'gpt2'"), "", ("gpt2", "train.py's own --model is gpt2 by default, which")),
        (RAW + OWN.format("'gpt2'"), "--model=qwen", ("qwen", "train.py's --model qwen")),
        (RAW + OWN.format("read()"), "", None),
    ],
)
def test_the_model_stands_in_the_arguments(
    tmp_path: Path, text: str, arguments: str, named: tuple[str, str] | None
) -> None:
    assert named_model(options(tmp_path, text, *arguments.split())) == named


def test_the_model_stands_in_a_file_of_arguments(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text('{"model_name_or_path": "gpt2"}')
    found = named_model(options(tmp_path, TRAINER, str(file)))
    assert found is not None and found[0] == "gpt2" and "args.json" in found[1]


def test_a_default_beside_the_script_is_its_whole_path(tmp_path: Path) -> None:
    found = named_model(options(tmp_path, RAW + OWN.format("Path(__file__).with_name('tiny.json')")))
    assert found is not None
    assert Path(found[0]).name == "tiny.json" and Path(found[0]).parent.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("my-modle", "my-model"),
        ("my_model", "my-model"),
        ("my-model", None),  # it is there
        ("their/my-modle", None),  # may be a repository
        ("my-dta", None),  # a folder, and no model's
        ("another", None),
        ("", None),
    ],
)
def test_a_folder_is_meant_by_a_name_that_is_nearly_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("my-model", "my-data"):
        Path(folder).mkdir()
    Path("my-model/config.json").write_text("{}")
    assert folder_meant(name) == meant


def test_a_dry_run_warns_of_a_misspelt_model_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run would ask the Hub again and again, and name the connection as the fault."""
    monkeypatch.chdir(tmp_path)
    for folder in ("my-model", "gpt-2"):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text("{}")
    script = write_script(tmp_path, RAW)
    words = ["launch", "--dry-run", "--device", "cpu", "--no-plan", str(script), "--model"]
    said = []
    for name in ("my-modle", "my-model", "gpt2"):  # gpt2 is a model of the Hub
        assert run([*words, name]) == 0
        said.append(" ".join(capsys.readouterr().err.split()))
    assert (
        "warning: train.py's --model my-modle: no such folder is here, but my-model is; the script would "
        "look for my-modle on the Hugging Face Hub" in said[0]
    )
    assert "no such folder" not in said[1] + said[2]
