"""Where a script and a DeepSpeed file of the user's own say different things, before the run says so.

Transformers ends a run whose ``TrainingArguments`` differ from the file (integrations/deepspeed.py,
``trainer_config_process`` and ``trainer_config_finalize``, 4.56 to 5.23). Accelerate lets the file win.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.domain.settings import SETTINGS, Setting, compare
from zerokit.script.arguments import TRAINERS_OWN, ScriptOptions, number, truth
from zerokit.script.code_statements import CodeSetting, made_once
from zerokit.script.code_values import code_stated

_DEFAULTS: Mapping[str, object] = TRAINERS_OWN | {
    "learning_rate": 5e-5, "weight_decay": 0.0, "adam_epsilon": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "bf16_full_eval": False, "fp16_full_eval": False, "auto_find_batch_size": False,
    "warmup_steps": 0, "warmup_ratio": None, "max_steps": -1,
}  # fmt: skip
"""transformers/training_args.py, 4.56 to 5.23."""
_PAIRS = (
    *(
        (SETTINGS[name].deepspeed, SETTINGS[name].trainer)
        for name in ("micro_batch", "gradient_accumulation", "gradient_clipping")
    ),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
)
"""Keys of the file and the arguments that must have the same value."""
_IN_PLACE_OF_AUTO = 1.0
"""The norm that Accelerate fills in where its plugin says none (1.15.0, accelerator.py:2224)."""
_BATCH = frozenset({"train_micro_batch_size_per_gpu", "train_batch_size"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One value of the file that differs from the script's.

    Attributes:
        key: path of the key in the file.
        arguments: what would make a Trainer's script agree; empty: there is no single one.
        scripts: the script's own value, where an Accelerate script has one.
    """

    key: str
    text: str
    arguments: tuple[str, ...] = ()
    scripts: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A value of the script's, and where it stands."""

    value: object
    where: str


class _TrainingArguments:
    """What the TrainingArguments of a script will hold, as far as its arguments or a call in its code tell.

    Attributes:
        made: in code, so that no option changes them.
    """

    def __init__(self, options: ScriptOptions | None) -> None:
        """Read them; None: nothing is given, so that each has its default."""
        self.options, self.made = options, False
        self._passed: dict[str, CodeSetting] = {}
        if options is not None and not options.facts.parses_training_arguments:
            classes = {name.rpartition(".")[2] for name in options.facts.argument_classes}
            made = [one for one in made_once(options.facts.code_settings) if one.call in classes]
            self.made = len({one.call for one in made}) == 1
            self._passed = {one.name: one for one in made}

    def value(self, name: str) -> _Value | None:
        """Value of one argument; None: computed, or set where nobody sees."""
        options = self.options
        if options is None:
            return self._default(name, _DEFAULTS[name])
        facts, passed = options.facts, self._passed.get(name)
        if passed is not None:
            given = options.given(passed.option.removeprefix("--")) if passed.option else None
            if given is not None:
                return _Value(value=given[0], where=given[1])
            return None if passed.value is None else _Value(value=passed.value, where=passed.text)
        if self.made and not facts.hides_arguments and all(map(_is_transformers, facts.argument_classes)):
            return self._default(name, _DEFAULTS[name])
        if not facts.parses_training_arguments:
            return None
        if (given := options.given(name)) is not None:
            return _Value(value=given[0], where=given[1])
        if name in options.defaults:
            return self._default(name, options.defaults[name])
        if name in facts.fields:  # of a class of the script's own
            default = facts.field_defaults.get(name)
            return None if default is None else self._default(name, default)
        # with the values of an installed class at hand, this argument is none of its release's
        is_known = bool(options.defaults) or all(map(_is_transformers, facts.argument_classes))
        return self._default(name, _DEFAULTS[name]) if is_known else None

    @staticmethod
    def _default(name: str, value: object) -> _Value:
        return _Value(value=value, where=f"{name} is {value} by default")

    def is_false(self, name: str) -> bool:
        """Whether a switch is off for certain."""
        value = self.value(name)
        return value is not None and truth(value.value) is False


def _is_transformers(name: str) -> bool:
    return name.startswith("transformers.")


def of_defaults(config: Mapping[str, Any]) -> list[Mismatch]:
    """The values of a file on which a Trainer ends its run unless its script is given them."""
    arguments = _TrainingArguments(None)
    return [*_of_pairs(arguments, config), *_of_betas(arguments, config), *_of_steps(arguments, config)]


def decided_by(config: Mapping[str, Any]) -> frozenset[str]:
    """Names of the arguments whose values a file has, so that it leaves none of them to the script."""
    names = {name for key, name in _PAIRS if _held(config, key) is not None}
    names |= {word.removeprefix("--") for one in of_defaults(config) for word in one.arguments[::2]}
    if any(_held(config, key) is not None for key in _BATCH):  # DeepSpeed derives the other sizes from it
        open_sizes = {key for key in ("gradient_accumulation_steps", *_BATCH) if config.get(key) == "auto"}
        names |= {name for key, name in _PAIRS[:2] if key not in open_sizes}
    return frozenset(names)


def of_trainer(options: ScriptOptions, config: Mapping[str, Any], ranks: int) -> list[Mismatch]:
    """The values of a file on which a Trainer ends its run.

    Args:
        config: the file as the run has it.
        ranks: on all machines together.
    """
    arguments = _TrainingArguments(options)
    found = [*_of_pairs(arguments, config), *_of_betas(arguments, config), *_of_steps(arguments, config)]
    if not any(one.key in _BATCH for one in found):
        found += _of_global_batch(arguments, config, ranks)
    if not arguments.is_false("auto_find_batch_size"):
        found = [one for one in found if one.key not in _BATCH]
    return found


def _of_pairs(arguments: _TrainingArguments, config: Mapping[str, Any]) -> Iterator[Mismatch]:
    for key, name in _PAIRS:
        held, value = _held(config, key), arguments.value(name)
        if held is None or value is None or _is_same(held, value.value):
            continue
        if held is True and not arguments.is_false(f"{name}_full_eval"):
            continue  # which turns it on too
        yield _mismatch(arguments, key, held, value, {name: held})


def _of_betas(arguments: _TrainingArguments, config: Mapping[str, Any]) -> Iterator[Mismatch]:
    held = _held(config, "optimizer.params.betas")
    names = ("adam_beta1", "adam_beta2")
    for name, beta in zip(names, held if isinstance(held, list) else (), strict=False):
        value = arguments.value(name)
        if value is not None and not _is_same(beta, value.value):
            yield _mismatch(arguments, "optimizer.params.betas", held, value, {name: beta})


def _of_steps(arguments: _TrainingArguments, config: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Steps of the learning rate's schedule, where they do not depend on the data's length."""
    steps = arguments.value("max_steps")
    total = _held(config, "scheduler.params.total_num_steps")
    if total is not None and steps is not None and number(steps.value) not in (None, total):
        yield _mismatch(arguments, "scheduler.params.total_num_steps", total, steps, {"max_steps": total})
    held = _held(config, "scheduler.params.warmup_num_steps")
    warmup, ratio = arguments.value("warmup_steps"), arguments.value("warmup_ratio")
    if held is None or warmup is None or ratio is None or ratio.value not in (None, 0, 0.0):
        return
    count = _float(warmup.value)
    is_whole = count is not None and count == int(count)
    if count is not None and is_whole and held not in (int(count), max(1, int(count))):
        yield _mismatch(
            arguments, "scheduler.params.warmup_num_steps", held, warmup, {"warmup_steps": held}
        )  # fmt: skip


def _of_global_batch(
    arguments: _TrainingArguments, config: Mapping[str, Any], ranks: int
) -> Iterator[Mismatch]:
    held = _held(config, "train_batch_size")
    sizes = [arguments.value(name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")]
    counts = [number(size.value) if size is not None else None for size in sizes]
    if held is None or counts[0] is None or counts[1] is None or held == counts[0] * counts[1] * ranks:
        return
    product = f"{counts[0]} per rank × {counts[1]} accumulation × {ranks} ranks"
    yield Mismatch(
        key="train_batch_size",
        text=f"train_batch_size {held}, but the Trainer makes {counts[0] * counts[1] * ranks} ({product})",
    )


def _mismatch(
    arguments: _TrainingArguments, key: str, held: object, value: _Value, wanted: Mapping[str, object]
) -> Mismatch:
    words = [word for name, one in wanted.items() for word in (f"--{name}", str(one))]
    return Mismatch(
        key=key,
        text=f"{key} {_json(held)}, but {value.where}",
        arguments=() if arguments.made else tuple(words),
    )


def of_accelerate(options: ScriptOptions, config: Mapping[str, Any]) -> list[Mismatch]:
    """Where an Accelerate script's code counts on another value than the file's, which wins (accelerate 1.15,
    accelerator.py, ``_prepare_deepspeed``; utils/dataclasses.py, ``DeepSpeedPlugin.__post_init__``)."""
    stated = [one for one in code_stated(options) if one.setting.deepspeed and one.value is not None]
    held = {one.setting.name: _in_force(config, one.setting) for one in stated}
    if config.get("gradient_clipping") == "auto":
        clipping = (one.value for one in made_once(options.facts.code_settings)
                    if (one.call, one.name) == ("DeepSpeedPlugin", "gradient_clipping"))  # fmt: skip
        held["gradient_clipping"] = next(clipping, _IN_PLACE_OF_AUTO)
    return [
        Mismatch(
            key=one.setting.deepspeed,
            text=f"{one.setting.deepspeed} {_json(value)}, but {one.where}",
            arguments=(*one.edit, str(value)) if one.edit else (),
            scripts=one.value,
        )
        for one, value in compare(held, stated, _is_held)
        if value is not None
    ]


def _is_held(value: object, held: object) -> bool:
    return held is None or _is_same(held, value) or _float(value) == math.inf


def ignored_clipping(options: ScriptOptions, config: Mapping[str, Any]) -> list[str]:
    """A warning where the code clips at another norm than the configuration, which alone counts; PyTorch's
    own call clips where gradients are whole."""
    zero = config.get("zero_optimization")
    is_divided = isinstance(zero, Mapping) and bool(zero.get("stage"))
    if options.style != "accelerate" and not (options.style == "raw" and is_divided):
        return []
    return [
        f"warning: {one.text}: the code's clipping does nothing under DeepSpeed; set gradient_clipping in "
        "the configuration"
        for one in of_accelerate(options, config)
        if one.key == "gradient_clipping"
    ]


def added_arguments(found: Sequence[Mismatch]) -> tuple[str, ...]:
    """What makes the script agree, each once."""
    pairs = dict(pair for one in found for pair in zip(one.arguments[::2], one.arguments[1::2], strict=True))
    return tuple(word for pair in pairs.items() for word in pair)


def _at(config: Any, path: str) -> Any:
    """What stands there; ``"auto"`` where that, or what it is part of, is left open."""
    for key in path.split("."):
        if config == "auto":
            break
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _held(config: Mapping[str, Any], path: str) -> Any:
    """The file's value; None: there is none, or the Trainer or Accelerate fills it (``"auto"``)."""
    value = _at(config, path)
    return None if value == "auto" else value


def _in_force(config: Mapping[str, Any], setting: Setting) -> Any:
    """The value that a run with the file has; None: the script's own (``"auto"``), or DeepSpeed's default."""
    value = _at(config, setting.deepspeed)
    return setting.left_out if value is None else None if value == "auto" else value


def strategy_value(config: Any, setting: Setting) -> Any:
    """What a configuration has of the stage, or of an offload; ``"auto"`` where it is left open."""
    value = _at(config, setting.deepspeed)
    default = 0 if setting.left_out is None else setting.left_out
    return default if value is None else value


def _is_same(held: object, value: object) -> bool:
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


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
