"""What a script imports before it does anything that an import could notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.rehearsal.first_imports import FirstImports, first_imports
from zerokit.script.entry_points import Target


def of_script(folder: Path, source: str) -> tuple[str, ...]:
    (folder / "train.py").write_text(source)
    target = Target(script=str(folder / "train.py"), module=None, arguments=())
    found = first_imports(target)
    assert not found.are_later
    return found.names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import yaml\nfrom pytest import mark, raises", ["yaml", "pytest", "pytest:mark", "pytest:raises"]),
        ("'''About.'''\nSEED: int = 3\nclass A: ...\nimport yaml", ["yaml"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import yaml\nimport click",
         ["typing", "typing:TYPE_CHECKING", "click"]),
        ("import yaml\nyaml.x = 1\nimport click", ["yaml"]),
        ("import yaml\nx = yaml.load('')\nimport click", ["yaml"]),
        ("try:\n    import yaml\nexcept ImportError:\n    pass\nimport click", []),
        ("import nowhere_to_be_found\nimport click", []),
        ("import yaml\ndef main(): import click\nif __name__ == '__main__': main()", ["yaml", "click"]),
        ("import yaml\ndef main(_): import click\nmain(yaml.load(''))", ["yaml"]),
        ("import yaml\ndef main(): import click", ["yaml"]),
        ("def", []),
    ],
)  # fmt: skip
def test_until_the_first_statement_that_is_none(source: str, names: list[str], tmp_path: Path) -> None:
    assert of_script(tmp_path, source) == tuple(names)


def test_modules_beside_the_script_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import click\n")
    (tmp_path / "late.py").write_text("import os\nos.environ['A'] = 'b'\n")
    source = "import yaml, data\nimport late\nimport pytest\n"
    assert of_script(tmp_path, source) == ("yaml", "click", "os")


def test_of_an_installed_module_all_that_it_calls() -> None:
    target = Target(script=None, module="trl.scripts.sft", arguments=())
    found = first_imports(target)
    assert found.are_later
    assert found.names[0] == "trl.scripts"
    assert {"trl:SFTConfig", "trl:SFTTrainer", "datasets:load_dataset"} <= {*found.names}
    under_deepspeed = first_imports(target, ("--deepspeed", "ds_config.json"))
    assert under_deepspeed.names == (*found.names, "deepspeed")


def test_what_is_not_there_imports_nothing() -> None:
    target = Target(script=None, module="nowhere.to.be.found", arguments=())
    assert first_imports(target) == FirstImports()
