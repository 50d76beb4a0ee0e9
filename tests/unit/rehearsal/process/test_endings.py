"""Whether what stopped a rehearsal ends every run: who raised it, and what the error depends on."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from zerokit.rehearsal.process.endings import cause_of


def raised(folder: Path, source: str, name: str = "train.py") -> BaseException:
    """What a script of this name raises."""
    path = folder / name
    path.write_text(source)
    with pytest.raises(BaseException) as error:
        runpy.run_path(str(path))
    return error.value


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("print('x', spe='')", "script"),
        ("raise ValueError('no such mode')", "script"),
        ("import json\njson.loads('{')", "rehearsal"),  # raised in a library
        ("open('/nowhere/at/all')", "rehearsal"),  # the machine of a run may have it
        ("sum([]) / 0", "rehearsal"),  # of few rounds
        ("import argparse\nargparse.ArgumentParser().parse_args(['--x'])", "argument"),
        ("raise SystemExit(1)", "rehearsal"),
        ("raise SystemExit('no GPU')", "rehearsal"),
        ("raise KeyboardInterrupt", "rehearsal"),
    ],
)
def test_an_error_of_the_scripts_own_is_told_from_others(source: str, cause: str, tmp_path: Path) -> None:
    assert cause_of(raised(tmp_path, source), has_guessed=False) == cause


def test_after_a_guess_an_error_may_be_the_rehearsals(tmp_path: Path) -> None:
    assert cause_of(raised(tmp_path, "None.x"), has_guessed=True) == "rehearsal"


def test_what_a_parser_of_transformers_refuses_is_an_argument(tmp_path: Path) -> None:
    for name in ("hf_argparser.py", "_hf_argparser.py"):
        error = raised(tmp_path, "raise ValueError(\"not used: ['--use_pefft']\")", name)
        assert cause_of(error, has_guessed=False) == "argument"
