"""In what two commands of a script differ."""

from __future__ import annotations

import pytest

from zerokit.launcher.unlike_arguments import fewer_steps, joined, unlike_arguments


@pytest.mark.parametrize(
    ("rehearsed", "given", "words"),
    [
        ("--a 1 --b", "--b --a=1", ()),
        ("--rows 8", "--rows 4", ("--rows 8, not 4",)),
        ("--rows 8", "", ("--rows 8, which is not given",)),
        ("", "--use_peft", ("without --use_peft",)),
        ("--names a b", "--names a", ("--names a b, not a",)),
        ("one.yaml", "two.yaml --x 1", ("one.yaml, not two.yaml", "without --x 1")),
        ("--output_dir out --logging-dir a", "--output_dir out2", ()),
        ("", "--max_steps 20 --learning_rate 1e-5 --logging-steps 1 --seed 3", ()),
        ("--max_steps 5", "--max_steps -1", ()),
        ("--max_steps 2", "", ("--max_steps 2, which is not given",)),
        ("--steps 4", "--steps 40", ()),
        ("--max_steps 3", "", ()),
        ("--gradient-accumulation-steps 2 --a 1", "--a 1", ()),
        (
            "--gradient-accumulation-steps 2",
            "--gradient-accumulation-steps 4",
            ("--gradient-accumulation-steps 2, not 4",),
        ),
        ("--max_length 512", "--max_length 1024 --max_steps 20", ("--max_length 512, not 1024",)),
    ],
)
def test_each_option_that_differs_is_named(rehearsed: str, given: str, words: tuple[str, ...]) -> None:
    assert unlike_arguments(rehearsed.split(), given.split()) == words


def test_of_many_the_first_are_named() -> None:
    unlike = unlike_arguments([], ["--a", "1", "--b", "2", "--c", "3", "--d", "4", "--e", "5", "--f", "6"])
    assert joined(unlike).endswith("without --d 4; and 2 more")


@pytest.mark.parametrize(
    ("rehearsed", "given", "option"),
    [
        ("--a 1", "--a 1 --max_steps 2", "--max_steps 2"),
        ("--max_steps 100", "--max-train-steps 3 --max_steps 100", "--max-train-steps 3"),
        ("--max_steps 4", "--max_steps=1 --seed 7", "--max_steps 1"),
        ("--max_steps 2", "--max_steps 4", None),
        ("--max_steps 2", "", None),
        ("--a 1", "--a 2 --max_steps 2", None),
        ("--a 1", "--a 1 --max_steps many", None),
        ("--a 1", "--a 1 --max_steps 20", None),
    ],
)
def test_fewer_steps_alone_are_told_from_other_differences(
    rehearsed: str, given: str, option: str | None
) -> None:
    assert fewer_steps(rehearsed.split(), given.split()) == option
