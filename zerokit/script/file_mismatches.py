"""Where a script and a DeepSpeed file of the user's own say different things, before the run says so.

Transformers ends a run whose ``TrainingArguments`` differ from the file (integrations/deepspeed.py,
``trainer_config_process`` and ``trainer_config_finalize``, 4.56 to 5.23). Accelerate lets the file win, which
the run and its rehearsal tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerokit.domain.settings import BY_ARGUMENT, SETTINGS, Stated, compare, value_at
from zerokit.script.arguments import ScriptOptions, truth

Difference = tuple[Stated, Any]
"""What a script says, with what would make it agree, and the file's value."""
_PAIRS = [row for row in SETTINGS.values() if row.deepspeed and row.trainer and row.name != "optimizer"]
"""What both must have alike; beside an optimizer of the file a Trainer does not look at its own."""
_FINDS_BATCH = "auto_find_batch_size"
_OTHERS: Mapping[str, object] = {
    "bf16_full_eval": False, "fp16_full_eval": False, _FINDS_BATCH: False, "warmup_ratio": None
}  # fmt: skip
"""Arguments that have a say in others, with their defaults (transformers/training_args.py, 4.56 to 5.23)."""
_BATCH = frozenset({"train_micro_batch_size_per_gpu", "train_batch_size"})


def _value(options: ScriptOptions | None, name: str) -> tuple[object, str] | None:
    """What a Trainer's argument holds, and where it stands; None: computed, or set where nobody sees.
    ``options``: of the script; None: nothing is given, so that each has its default."""
    default = _OTHERS[name] if name in _OTHERS else BY_ARGUMENT[name].default
    if options is not None:
        if (decided := options.decided(name)) is not None:
            return decided
        facts = options.facts
        is_transformers = all(one.startswith("transformers.") for one in facts.argument_classes)
        is_known = facts.parses_training_arguments or (facts.argument_classes and not facts.hides_arguments)
        if name in facts.fields | facts.keywords or not is_known:
            return None
        if not is_transformers and name != _FINDS_BATCH:
            return None  # the run tells the defaults of another class
    return default, f"{name} is {default} by default"


def _stated(options: ScriptOptions | None) -> Iterator[Stated]:
    """What the arguments say of what a file says too, as far as they tell it alone."""

    def is_off(name: str) -> bool:
        found = _value(options, name)
        return found is not None and (not found[0] or truth(found[0]) is False)

    made = options is not None and not options.facts.parses_training_arguments
    for row in _PAIRS:
        name = row.trainer
        value, where = _value(options, name) or (None, "")
        is_told = True
        if row.deepspeed in _BATCH:
            is_told = is_off(_FINDS_BATCH)
        elif name in ("bf16", "fp16"):
            is_told = truth(value) is not False or is_off(f"{name}_full_eval")  # which turns it on too
        elif name in ("max_steps", "warmup_steps"):
            steps = _float(value)
            # else of the data's length, or a ratio of it
            is_told = steps is not None and steps >= 0 and steps == int(steps) and is_off("warmup_ratio")
            value = (steps, max(1.0, steps or 0))  # the one for older versions
        yield Stated(
            setting=row, value=value if is_told else None, where=where, edit=() if made else (f"--{name}",)
        )


def of_trainer(options: ScriptOptions | None, config: Mapping[str, Any]) -> list[Difference]:
    """The values of a file on which a Trainer ends its run, as far as its arguments and literals tell.
    ``options``: of the script; None: those on which it does unless its script is given them. ``config``: the
    file as the run has it."""
    if options is not None and options.style != "trainer":
        return []
    held = {row.name: _held(config, row.deepspeed) for row in _PAIRS}
    return compare(held, _stated(options), _is_same)


def key_of(one: Stated) -> str:
    """The file's key, of a list's item the list's."""
    return one.setting.deepspeed.removesuffix(".0").removesuffix(".1")


def in_words(one: Stated, config: Mapping[str, Any]) -> str:
    """The file's value and the script's."""
    key = key_of(one)
    held = _held(config, key)
    return f"{key} {str(held).lower() if isinstance(held, bool) else held}, but {one.where}"


def decided_by(config: Mapping[str, Any]) -> frozenset[str]:
    """Names of the arguments whose values a file has, so that it leaves none of them to the script."""
    names = {row.trainer for row in _PAIRS if _held(config, row.deepspeed) is not None}
    if any(_held(config, key) is not None for key in _BATCH):  # DeepSpeed derives the other sizes from it
        open_sizes = {key for key in ("gradient_accumulation_steps", *_BATCH) if config.get(key) == "auto"}
        sizes = (SETTINGS["micro_batch"], SETTINGS["gradient_accumulation"])
        names |= {row.trainer for row in sizes if row.deepspeed not in open_sizes}
    return frozenset(names)


def added_arguments(found: Sequence[Difference]) -> tuple[str, ...]:
    """What makes the script agree, each once; of one that makes its arguments itself nothing."""
    pairs = {one.edit[0]: str(held) for one, held in found if one.edit}
    return tuple(word for pair in pairs.items() for word in pair)


def _held(config: Mapping[str, Any], path: str) -> Any:
    """The file's value; None: there is none, or the Trainer or Accelerate fills it (``"auto"``)."""
    value = value_at(config, path)
    return None if value == "auto" else value


def _is_same(value: object, held: object) -> bool:
    """Whether a Trainer takes them for one; any of several values, and one that is not known."""
    if isinstance(value, tuple):
        return any(_is_same(one, held) for one in value)
    if held is None or value is None:
        return True
    if isinstance(held, bool):
        return truth(value) in (None, held)
    first, second = _float(held), _float(value)
    if isinstance(held, str) and first is None and isinstance(value, str):
        return held == value
    return first is None or second is None or first == second


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
