"""In what the arguments of two commands differ that their memory or step time may depend on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from zerokit.domain.script_words import by_option
from zerokit.script.option_values import ACCUMULATION, CHECKPOINTING, MICRO_BATCH

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
_PLANNED = frozenset((*MICRO_BATCH, *ACCUMULATION, *CHECKPOINTING))
"""What a launch gives a script that is not given it, as its plan has it, or warns of."""
_STEPS = frozenset(("max_steps", "max_train_steps", "num_train_steps", "train_steps", "num_steps", "steps"))
_MOST_STEPS = 5
"""Optimizer steps that a rehearsal runs."""
_ENOUGH_STEPS = 3
"""Of so many, more change nothing that a rehearsal tells: it times a step from the third on."""


def unlike_arguments(rehearsed: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Where they differ, but for where they write to, how many steps more they take, and figures that
    change numbers alone (a learning rate): ``--max_length 512, not 1024``.

    Args:
        rehearsed: the arguments of the command that a plan was rehearsed with. given: those of now.
    """
    return tuple(_words(option, before, now) for option, before, now in _differing(rehearsed, given))


def fewer_steps(rehearsed: Sequence[str], given: Sequence[str]) -> str | None:
    """The option by which the command of now takes fewer optimizer steps than were rehearsed; None: it does
    not, or differs in something else too."""
    differing = list(_differing(rehearsed, given))
    if len(differing) != 1 or _name(differing[0][0]) not in _STEPS:
        return None
    option, before, now = differing[0]
    rehearsed_steps, steps = _steps(before), _steps(now)
    is_fewer = rehearsed_steps is not None and steps is not None and steps < rehearsed_steps
    return _shown(option, now) if is_fewer else None


_Values = tuple[str, ...] | None


def _differing(rehearsed: Sequence[str], given: Sequence[str]) -> Iterator[tuple[str, _Values, _Values]]:
    """Each option that differs and may matter, with its values before and now."""
    before, now = dict(by_option(rehearsed)), dict(by_option(given))
    for option in dict.fromkeys((*before, *now)):
        values = before.get(option), now.get(option)
        if values[0] != values[1] and _may_matter(option, *values):
            yield option, *values


def _may_matter(option: str, *values: _Values) -> bool:
    name = _name(option)
    if name in _STEPS:
        rehearsed, steps = map(_steps, values)
        return rehearsed is None or steps is None or steps < rehearsed or rehearsed < _ENOUGH_STEPS
    if name in _PLANNED and values[1] is None:
        return False
    return name not in _OUTPUTS | _VALUES_ALONE


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _steps(words: _Values) -> int | None:
    """How many a rehearsal runs of these, which is all of no limit (-1, or not given); None: no number."""
    (steps,) = ("-1",) if words is None else words if len(words) == 1 else ("",)
    if steps == "-1":
        return _MOST_STEPS
    return min(int(steps), _MOST_STEPS) if steps.isdecimal() else None


def joined(unlike: Sequence[str]) -> str:
    """Them in a sentence, the first few."""
    more = len(unlike) - _MOST_NAMED
    return "; ".join((*unlike[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])))


def _words(option: str, before: tuple[str, ...] | None, now: tuple[str, ...] | None) -> str:
    if before is None:
        return f"without {_shown(option, now)}"
    if now is None:
        return f"{_shown(option, before)}, which is not given"
    return f"{_shown(option, before)}, not {shlex.join(now) or 'without a value'}"


def _shown(option: str, values: tuple[str, ...] | None) -> str:
    return " ".join(filter(None, (option, shlex.join(values or ()))))
