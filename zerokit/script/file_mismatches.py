"""Where a script and a DeepSpeed file of the user's own say different things, before the run says so.

Transformers ends a run whose ``TrainingArguments`` differ from the file (integrations/deepspeed.py,
``trainer_config_process`` and ``trainer_config_finalize``, 4.56 to 5.23). Accelerate lets the file win.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from zerokit.script.arguments import TRAINERS_OWN, ScriptOptions
from zerokit.script.code_settings import CLIPPING, made_once
from zerokit.script.loader_batch import loader_batch
from zerokit.script.option_values import number, truth
from zerokit.script.trainer_arguments import values_of_class

_DEFAULTS: Mapping[str, object] = TRAINERS_OWN | {
    "learning_rate": 5e-5, "weight_decay": 0.0, "adam_epsilon": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "bf16_full_eval": False, "fp16_full_eval": False, "auto_find_batch_size": False,
    "warmup_steps": 0, "warmup_ratio": None, "max_steps": -1,
}  # fmt: skip
"""transformers/training_args.py, 4.56 to 5.23."""
_PAIRS = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
)
"""Keys of the file and the arguments that must have the same value."""
_KEYS_OF_CALLS: Mapping[tuple[str, str], str] = {
    ("Accelerator", "gradient_accumulation_steps"): "gradient_accumulation_steps",
    ("GradientAccumulationPlugin", "num_steps"): "gradient_accumulation_steps",
    ("DeepSpeedPlugin", "gradient_accumulation_steps"): "gradient_accumulation_steps",
    ("DeepSpeedPlugin", "gradient_clipping"): "gradient_clipping",
    (CLIPPING, "max_norm"): "gradient_clipping",
    ("DeepSpeedPlugin", "zero_stage"): "zero_optimization.stage",
    ("DeepSpeedPlugin", "offload_optimizer_device"): "zero_optimization.offload_optimizer.device",
    ("DeepSpeedPlugin", "offload_param_device"): "zero_optimization.offload_param.device",
}
"""Keywords of Accelerate's calls, and the key of a file that counts in their place."""
_LEFT_OUT: Mapping[str, object] = {
    "gradient_accumulation_steps": 1,  # Accelerate writes it into the file
    "gradient_clipping": 1.0,  # DeepSpeed's own default (runtime/constants.py:203, 0.19.8)
    "zero_optimization.offload_optimizer.device": "none",
    "zero_optimization.offload_param.device": "none",
}
"""What a file without the key has."""
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


class _Arguments(Protocol):
    """What is known of TrainingArguments; ``made``: in code, so that no option changes them."""

    made: bool

    def value(self, name: str) -> _Value | None: ...

    def is_false(self, name: str) -> bool: ...


class _TrainingArguments:
    """What the TrainingArguments of a script will hold, as far as is known before it runs."""

    def __init__(self, options: ScriptOptions) -> None:
        self.options, self.facts = options, options.facts
        settings = self.facts.code_settings
        self.calls = [one for one in settings if one.call in self._classes()]
        is_made_once = sum(1 for one in self.calls if not one.name) == 1
        self.made = is_made_once and not self.facts.parses_training_arguments
        self.known = self.facts.parses_training_arguments or self.made

    def _classes(self) -> set[str]:
        return {"TrainingArguments", *(name.rpartition(".")[2] for name in self.facts.argument_classes)}

    def value(self, name: str) -> _Value | None:
        """Of one argument; None: computed, or set where nobody sees."""
        if not self.known or any(one.name == name for one in self.facts.assigned):
            return None
        return self._made(name) if self.made else self._parsed(name)

    def _parsed(self, name: str) -> _Value | None:
        given = self.options.given(name)
        if given is not None:
            return _Value(value=given[0], where=given[1])
        if name in self.options.defaults:
            return self._default(name, self.options.defaults[name])
        if name in self.facts.fields:  # of a class of the script's own
            default = self.facts.field_defaults.get(name)
            return None if default is None else self._default(name, default)
        other = any(not one.startswith("transformers.") for one in self.facts.argument_classes)
        is_read = bool(self.options.defaults)  # then this argument is none of its release's
        return None if other and not is_read else self._default(name, _DEFAULTS[name])

    def _made(self, name: str) -> _Value | None:
        one = next((one for one in self.calls if one.name == name), None)
        if one is None:
            return self._left_out(name)
        given = self.options.given(one.option.removeprefix("--")) if one.option else None
        if given is not None:
            return _Value(value=given[0], where=given[1])
        return None if one.value is None else _Value(value=one.value, where=one.text)

    def _left_out(self, name: str) -> _Value | None:
        """What code that makes the arguments leaves to their class."""
        if self.facts.hides_arguments or not self.facts.argument_classes:
            return None
        if all(one.startswith("transformers.") for one in self.facts.argument_classes):
            return self._default(name, _DEFAULTS[name])
        other_half = {"bf16": "fp16"}.get(name)  # TRL's classes ask for bf16 unless for fp16
        if other_half is not None and any(one.name == other_half for one in self.calls):
            return None
        values = self._of_trls_class
        return self._default(name, values.get(name, _DEFAULTS[name])) if values else None

    @cached_property
    def _of_trls_class(self) -> dict[str, object]:
        """Defaults of the installed class of TRL's whose call makes the arguments; empty: it is none."""
        called = {f"trl.{one.call}" for one in self.calls}
        classes = [name for name in self.facts.argument_classes if name in called]
        return values_of_class(classes, self.facts, ()) if classes else {}

    @staticmethod
    def _default(name: str, value: object) -> _Value:
        return _Value(value=value, where=f"{name} is {value} by default")

    def is_false(self, name: str) -> bool:
        """Whether a switch is off for certain."""
        value = self.value(name)
        return value is not None and truth(value.value) is False


class _Untouched:
    """TrainingArguments that were given nothing: each has its default."""

    made = False

    @staticmethod
    def value(name: str) -> _Value | None:
        """The default of one argument."""
        return _TrainingArguments._default(name, _DEFAULTS[name])

    @staticmethod
    def is_false(name: str) -> bool:
        """Whether a switch is off by default."""
        return truth(_DEFAULTS[name]) is False


def of_defaults(config: Mapping[str, Any]) -> list[Mismatch]:
    """The values of a file on which a Trainer ends its run unless its script is given them."""
    arguments = _Untouched()
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


def _of_pairs(arguments: _Arguments, config: Mapping[str, Any]) -> Iterator[Mismatch]:
    for key, name in _PAIRS:
        held, value = _held(config, key), arguments.value(name)
        if held is None or value is None or _is_same(held, value.value):
            continue
        if held is True and not arguments.is_false(f"{name}_full_eval"):
            continue  # which turns it on too
        yield _mismatch(arguments, key, held, value, {name: held})


def _of_betas(arguments: _Arguments, config: Mapping[str, Any]) -> Iterator[Mismatch]:
    held = _held(config, "optimizer.params.betas")
    names = ("adam_beta1", "adam_beta2")
    for name, beta in zip(names, held if isinstance(held, list) else (), strict=False):
        value = arguments.value(name)
        if value is not None and not _is_same(beta, value.value):
            yield _mismatch(arguments, "optimizer.params.betas", held, value, {name: beta})


def _of_steps(arguments: _Arguments, config: Mapping[str, Any]) -> Iterator[Mismatch]:
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


def _of_global_batch(arguments: _Arguments, config: Mapping[str, Any], ranks: int) -> Iterator[Mismatch]:
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
    arguments: _Arguments, key: str, held: object, value: _Value, wanted: Mapping[str, object]
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
    found, made = [], list(made_once(options.facts.code_settings))
    norms = (one.value for one in made if (one.call, one.name) == ("DeepSpeedPlugin", "gradient_clipping"))
    filled_in = next(norms, _IN_PLACE_OF_AUTO)
    for one in made:
        key = _KEYS_OF_CALLS.get((one.call, one.name))
        if key is None:
            continue
        held = _in_force(config, key)
        if one.call == CLIPPING and config.get("gradient_clipping") == "auto":
            held = filled_in
        if held is None:
            continue
        given = options.given(one.option.removeprefix("--")) if one.option else None
        value = given[0] if given is not None else one.value
        if value is None or _is_same(held, value) or _float(value) == math.inf:
            continue
        where = f"{given[1]} ({one.path}:{one.line})" if given is not None else one.text
        arguments = (one.option, str(held)) if one.option else ()
        text = f"{key} {_json(held)}, but {where}"
        found.append(Mismatch(key=key, text=text, arguments=arguments, scripts=value))
    batch, loaded = _held(config, "train_micro_batch_size_per_gpu"), loader_batch(options)
    if batch is not None and loaded is not None and loaded.sequences != batch:
        gives = f"{loaded.location} gives each rank {loaded.sequences}"
        text = f"train_micro_batch_size_per_gpu {batch}, but {gives}"
        found.append(Mismatch(key="train_micro_batch_size_per_gpu", text=text, scripts=loaded.sequences))
    return found


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


def _held(config: Mapping[str, Any], path: str) -> Any:
    """The file's value; None: there is none, or the Trainer or Accelerate fills it (``"auto"``)."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value == "auto" else value


def _in_force(config: Mapping[str, Any], path: str) -> Any:
    """The value that a run with the file has; None: the script's own (``"auto"``), or DeepSpeed's default."""
    value: Any = config
    for key in path.split("."):
        if value == "auto":
            return None
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return _LEFT_OUT.get(path)
    return None if value == "auto" else value


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
