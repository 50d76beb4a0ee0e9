"""In what the arguments of two commands differ that their memory or step time may depend on."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence

_MOST_NAMED = 4
_OUTPUTS = frozenset(
    ("output_dir", "output_path", "output_folder", "output", "out_dir", "out", "save_dir", "save_path",
     "save_folder", "logging_dir", "log_dir", "log_path", "run_name")
)  # fmt: skip
"""What scripts call where they write to: neither memory nor time depends on it."""
_VALUES_ALONE = frozenset(
    ("learning_rate", "lr", "weight_decay", "warmup_steps", "warmup_ratio", "lr_scheduler_type",
     "adam_beta1", "adam_beta2", "adam_epsilon", "logging_steps", "logging_strategy", "logging_first_step",
     "log_level", "disable_tqdm", "report_to", "seed", "data_seed", "num_train_epochs", "num_epochs",
     "epochs")
)  # fmt: skip
"""What Transformers and scripts like its own call figures that change numbers, not what is allocated."""
_STEPS = frozenset(("max_steps", "max_train_steps", "num_train_steps", "train_steps"))
_ENOUGH_STEPS = 5
"""Optimizer steps that a rehearsal runs: more change nothing that it tells."""


def unlike_arguments(rehearsed: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Where they differ, but for where they write to, how many steps more they take, and figures that
    change numbers alone (a learning rate): ``--max_length 512, not 1024``.

    Args:
        rehearsed: the arguments of the command that a plan was rehearsed with. given: those of now.
    """
    before, now = dict(_by_option(rehearsed)), dict(_by_option(given))
    return tuple(
        _words(option, before.get(option), now.get(option))
        for option in dict.fromkeys((*before, *now))
        if before.get(option) != now.get(option) and _may_matter(option, before.get(option), now.get(option))
    )


def _may_matter(option: str, *values: tuple[str, ...] | None) -> bool:
    name = option.lstrip("-").replace("-", "_")
    if name in _STEPS:
        return not all(value is None or _are_enough_steps(value) for value in values)
    return name not in _OUTPUTS | _VALUES_ALONE


def _are_enough_steps(words: tuple[str, ...]) -> bool:
    """Whether it is as many as a rehearsal runs, or no limit (-1)."""
    (steps,) = words if len(words) == 1 else ("",)
    return steps == "-1" or (steps.isdecimal() and int(steps) >= _ENOUGH_STEPS)


def joined(unlike: Sequence[str]) -> str:
    """Them in a sentence, the first few."""
    more = len(unlike) - _MOST_NAMED
    return "; ".join((*unlike[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])))


def _by_option(words: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option with its values; what stands before the first is that of an empty name."""
    option: str = ""
    values: list[str] = []
    for word in itertools.chain(words, ["--"]):
        if not word.startswith("--"):
            values.append(word)
            continue
        if option or values:
            yield option, tuple(values)
        option, equals, value = word.partition("=")
        values = [value] if equals else []


def _words(option: str, before: tuple[str, ...] | None, now: tuple[str, ...] | None) -> str:
    if before is None:
        return f"without {_shown(option, now)}"
    if now is None:
        return f"{_shown(option, before)}, which is not given"
    return f"{_shown(option, before)}, not {shlex.join(now) or 'without a value'}"


def _shown(option: str, values: tuple[str, ...] | None) -> str:
    return " ".join(filter(None, (option, shlex.join(values or ()))))
