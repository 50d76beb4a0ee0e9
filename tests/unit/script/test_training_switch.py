"""Scripts that train only with an option of theirs, as Transformers' run_clm.py does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import TRAINER, options
from zerokit.script.training_switch import why_no_training

RUN_CLM = TRAINER.replace("Trainer(args=args).train()", "if args.do_train: Trainer(args=args).train()")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (RUN_CLM, "--output_dir out", "which is not among its arguments"),
        (RUN_CLM, "--do_train False", "its arguments have --do_train False"),
        (RUN_CLM, "--do_train", None),
        (RUN_CLM, "--do_train=true", None),
        (RUN_CLM.replace("if args", "args.do_train = True\n    if args"), "", None),
        (TRAINER, "", None),  # trains whatever it is given
        (TRAINER + "\ndef do_train(): ...\ndo_train()\n", "", None),  # a function of that name, as Axolotl's
    ],
)
def test_a_script_without_its_switch_is_named(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = why_no_training(options(tmp_path, text).facts, arguments.split())
    assert found is None if said is None else found is not None and said in found


def test_the_switch_may_stand_in_a_file_of_arguments(tmp_path: Path) -> None:
    facts = options(tmp_path, RUN_CLM).facts
    for value, trains in (("true", True), ("false", False)):
        file = tmp_path / f"{value}.json"
        file.write_text(f'{{"output_dir": "out", "do_train": {value}}}')
        assert (why_no_training(facts, [str(file)]) is None) is trains
