"""Models that are named by a folder or a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit import plan
from zerokit.errors import InputError
from zerokit.planner.model_paths import config_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    (tmp_path / "bare").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def test_a_folder_or_its_file_is_the_configuration(folder: Path) -> None:
    assert config_file("tiny") == config_file("tiny/config.json") == Path("tiny/config.json")
    assert config_file("llama-3.1-8b") is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("bare", "the folder has no config.json"),
        ("train.py", "a script is no model"),
        ("model.safetensors", "a file of weights"),
        ("tiny/conf.json", "no such file"),
    ],
)
def test_what_is_no_configuration_is_refused(folder: Path, model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        config_file(model)


@pytest.mark.parametrize("model", ["tinny", "./tinny"])
def test_a_misspelt_folder_is_named(folder: Path, model: str) -> None:
    with pytest.raises(InputError, match=r"there is a model in tiny$"):
        plan(model=model, gpus=1)
