"""Where a script and a DeepSpeed file of the user's own say different things, before the run says so.

Transformers ends a run whose ``TrainingArguments`` differ from the file (integrations/deepspeed.py,
``trainer_config_process`` and ``trainer_config_finalize``, 4.56 to 5.23). Accelerate lets the file win, which
the run and its rehearsal tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.domain.settings import SETTINGS, Stated
from zerokit.script.arguments import TRAINERS_OWN, ScriptOptions, truth

_DEFAULTS: Mapping[str, object] = TRAINERS_OWN | {
    "learning_rate": 5e-5, "weight_decay": 0.0, "adam_epsilon": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "bf16_full_eval": False, "fp16_full_eval": False, "auto_find_batch_size": False,
    "warmup_steps": 0, "warmup_ratio": None, "max_steps": -1,
}  # fmt: skip
"""transformers/training_args.py, 4.56 to 5.23."""
_PAIRS: tuple[tuple[str, str], ...] = (
    *(
        (SETTINGS[name].deepspeed, SETTINGS[name].trainer)
        for name in ("micro_batch", "gradient_accumulation", "gradient_clipping")
    ),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("optimizer.params.betas.0", "adam_beta1"),
    ("optimizer.params.betas.1", "adam_beta2"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
    ("scheduler.params.total_num_steps", "max_steps"),
    ("scheduler.params.warmup_num_steps", "warmup_steps"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
)
"""Keys of the file and the arguments that must have the same value."""
_FINDS_BATCH = "auto_find_batch_size"
_BATCH = frozenset({"train_micro_batch_size_per_gpu", "train_batch_size"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One value of the file that differs from the script's.

    Attributes:
        key: path of the key in the file.
        arguments: what would make a Trainer's script agree; empty: there is no single one.
    """

    key: str
    text: str
    arguments: tuple[str, ...] = ()


def _value(options: ScriptOptions | None, name: str) -> tuple[object, str] | None:
    """What a Trainer's argument holds, and where it stands; None: computed, or set where nobody sees.

    Args:
        options: of the script; None: nothing is given, so that each has its default.
    """
    default = _DEFAULTS[name]
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


def of_defaults(config: Mapping[str, Any]) -> list[Mismatch]:
    """The values of a file on which a Trainer ends its run unless its script is given them."""
    return list(_of_pairs(None, config))


def decided_by(config: Mapping[str, Any]) -> frozenset[str]:
    """Names of the arguments whose values a file has, so that it leaves none of them to the script."""
    names = {name for key, name in _PAIRS if _held(config, key) is not None}
    if any(_held(config, key) is not None for key in _BATCH):  # DeepSpeed derives the other sizes from it
        open_sizes = {key for key in ("gradient_accumulation_steps", *_BATCH) if config.get(key) == "auto"}
        names |= {name for key, name in _PAIRS[:2] if key not in open_sizes}
    return frozenset(names)


def of_trainer(options: ScriptOptions, config: Mapping[str, Any]) -> list[Mismatch]:
    """The values of a file on which a Trainer ends its run, as far as its arguments and literals tell.

    Args:
        config: the file as the run has it.
    """
    if options.style != "trainer":
        return []
    finds_batch = _value(options, _FINDS_BATCH)
    is_fixed = finds_batch is not None and truth(finds_batch[0]) is False
    return [one for one in _of_pairs(options, config) if is_fixed or one.key not in _BATCH]


def _of_pairs(options: ScriptOptions | None, config: Mapping[str, Any]) -> Iterator[Mismatch]:
    for path, name in _PAIRS:
        held, value = _held(config, path), _value(options, name)
        if held is None or value is None or _is_same(held, value[0]):
            continue
        if held is True:
            evaluated = _value(options, f"{name}_full_eval")  # turns it on too
            if evaluated is None or truth(evaluated[0]) is not False:
                continue
        if "num_steps" in path and not _decides_steps(options, held, value[0]):
            continue
        made = options is not None and not options.facts.parses_training_arguments
        key = path[:-2] if path[-1].isdecimal() else path
        yield Mismatch(
            key=key,
            text=f"{key} {_json(_held(config, key))}, but {value[1]}",
            arguments=() if made else (f"--{name}", str(held)),
        )


def _decides_steps(options: ScriptOptions | None, held: object, steps: object) -> bool:
    """Whether a schedule's steps are known: they do not depend on the data's length, nor on a ratio."""
    ratio = _value(options, "warmup_ratio")
    count = _float(steps)
    is_whole = count is not None and count >= 0 and count == int(count)
    return is_whole and held != max(1, int(count or 0)) and ratio is not None and not ratio[0]


def added_arguments(found: Sequence[Mismatch]) -> tuple[str, ...]:
    """What makes the script agree, each once."""
    pairs = dict(pair for one in found for pair in zip(one.arguments[::2], one.arguments[1::2], strict=True))
    return tuple(word for pair in pairs.items() for word in pair)


def _at(config: Any, path: str) -> Any:
    """What stands there; ``"auto"`` where that, or what it is part of, is left open."""
    for key in path.split("."):
        if config == "auto":
            break
        if isinstance(config, list):
            config = dict(enumerate(config)).get(int(key)) if key.isdecimal() else None
        else:
            config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _held(config: Mapping[str, Any], path: str) -> Any:
    """The file's value; None: there is none, or the Trainer or Accelerate fills it (``"auto"``)."""
    value = _at(config, path)
    return None if value == "auto" else value


def strategy(config: Any, where: str) -> Iterator[Stated]:
    """What a configuration has of the stage and the offloads; None where that is left open."""
    for name in ("zero_stage", "offload_optimizer", "offload_param"):
        one = SETTINGS[name]
        value = _at(config, one.deepspeed)
        value = (one.left_out or 0) if value is None else value
        key = one.deepspeed.removeprefix("zero_optimization.").removesuffix(".device")
        own = None if value == "auto" else value
        yield Stated(setting=one, value=own, where=f"{where}{key} {value}")


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
