"""A script's facts are those of what runs in it, not of all that stands in the files that it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.script.reader import ScriptFacts, read_script

PARSES = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    "class Rows:\n    pass\n"
    "def parse():\n    return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    "def main():\n    args, = parse()\n    Trainer(args=args).train()\n"
)
OWN = (
    "from transformers import Trainer, TrainingArguments\n"
    "def main():\n    Trainer(args=TrainingArguments('out', per_device_train_batch_size=8)).train()\n"
    "main()\n"
)


def facts(folder: Path, script: str, **modules: str) -> ScriptFacts:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    path = folder / "hard.py"
    path.write_text(script)
    return read_script(path, None)


@pytest.mark.parametrize(
    "end", ["", "if __name__ == '__main__':\n    main()\n", "if '__main__' == __name__:\n    main()\n"]
)
@pytest.mark.parametrize("take", ["from train import Rows\n", "import train\nrows = train.Rows()\n"])
def test_another_scripts_main_parses_nothing(end: str, take: str, tmp_path: Path) -> None:
    """Though this script has a ``main`` of its own that it calls."""
    read = facts(tmp_path, take + OWN, train=PARSES + end)
    assert read.style == "trainer" and not read.parses_training_arguments
    assert facts(tmp_path, PARSES + "main()\n").parses_training_arguments


@pytest.mark.parametrize(
    "script",
    [
        "from train import parse\nparse()\n",
        "from train import main as start\nstart()\n",
        "import train\ntrain.main()\n",
        "import train as other\nother.parse()\n",
        "from train import *\nmain()\n",
        "from again import parse\nparse()\n",
        "import again\nagain.train.main()\n",
        "import at_once\n",
    ],
)
def test_what_the_script_takes_from_a_module_runs(script: str, tmp_path: Path) -> None:
    modules = {"train": PARSES, "again": "import train\nfrom train import parse\n",
               "at_once": PARSES + "main()\n"}  # fmt: skip
    assert facts(tmp_path, script, **modules).parses_training_arguments


def test_what_a_class_or_a_registered_function_needs_stays(tmp_path: Path) -> None:
    parser = "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--x')\n"
    by_class = parser + "class Rows:\n    def __init__(self):\n        parse()\n"
    registered = parser.replace("def parse", "import click\n@click.command()\ndef parse")
    script = "from lib import Rows\nRows()\n"
    for text in (by_class, registered):
        assert "--x" in facts(tmp_path, script, lib=text).options
    assert "--x" not in facts(tmp_path, script, lib=parser + "class Rows:\n    pass\n").options


def test_options_under_main_of_another_module_are_none(tmp_path: Path) -> None:
    module = (
        "import argparse\nclass Rows:\n    pass\n"
        "if __name__ == '__main__':\n    argparse.ArgumentParser().add_argument('--y')\n"
    )
    assert not facts(tmp_path, "from lib import Rows\n", lib=module).options
