"""The model that the arguments of a script name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.script.named_model import named_model

OWN = "    parser.add_argument('--model', default={})\n"


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        (TRAINER, "--model_name_or_path gpt2 --output_dir out", ("gpt2", "--model_name_or_path gpt2")),
        (RAW, "--model-name=gpt2", ("gpt2", "--model-name gpt2")),
        (RAW, "--steps 3", None),
        (RAW + OWN.format("'gpt2'"), "", ("gpt2", "--model is gpt2 by default, which")),
        (RAW + OWN.format("'gpt2'"), "--model=qwen", ("qwen", "--model qwen")),
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
