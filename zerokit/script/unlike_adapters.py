"""Whether a script trains the adapters that its plan counts on, as far as its arguments and source tell."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from zerokit.domain.job import Lora
from zerokit.domain.trainers import TRAINERS
from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import number, truth
from zerokit.script.reader import PARSERS_OF_DATACLASSES, ScriptFacts

TRLS_SWITCH = "--use_peft"
"""The option of TRL's ModelConfig that has its trainers add adapters."""
_RANKS = ("lora_r", "lora_rank", "lora_dim", "rank", "r")
_TRLS_RANK = 16  # trl/trainer/model_config.py, ModelConfig.lora_r, 0.12 to 1.8
_ADAPTERS = re.compile(r"(?:use_|with_|train_)?(?:q?lora|peft|adapters?)")
_LORA = re.compile(r"(?:use_|with_|train_)?(?:lora|peft|adapters?)")  # that of QLoRA may only quantise
_FOUR_BITS = re.compile(r"(?:\w+_)?(?:4_?bits?|four_?bits?|qlora|nf4|int4)(?:_\w+)?")
_SIGNS_OF_ADAPTERS = ("lora", "peft", "adapter")
_SIGNS_OF_FOUR_BITS = ("bitsandbytes", "4bit", "four_bit", "quantiz", "qlora", "unsloth")


def warnings(options: ScriptOptions, method: str, lora: Lora | None, *, by_options: bool = True) -> list[str]:
    """Where the script trains something else than the plan; unsure, so nothing is refused.

    Args:
        method: what the plan trains: ``full``, ``lora`` or ``qlora``.
        lora: the plan's adapters; None for ``full``.
        by_options: say which option plans for it, as no command is named that plans with the script.
    """
    facts = options.facts
    if facts.unreadable:
        return []
    none_added = _of_adapters(options, method, lora, by_options)
    result = [*none_added, *_of_four_bits(options, method, by_options)]
    if lora is not None and not none_added:
        result += [*_of_rank(options, lora, by_options), *_of_targets(options, lora, by_options)]
    return [f"warning: {line}" for line in result]


def _of_adapters(options: ScriptOptions, method: str, lora: Lora | None, by_options: bool) -> list[str]:
    facts = options.facts
    if takes_model_config(facts):  # whose use_peft under a plan for all weights is known already
        adapters = options.given("use_peft")
        if method == "full" or (adapters is not None and truth(adapters[0]) is True):
            return []
        return [
            f"the plan trains {_words(method)}, and without --use_peft the script trains all weights, which "
            f"takes more memory than predicted: give the script {_trls_adapters(options, lora or Lora())}"
        ]
    switch = _switch(options, _LORA if method == "lora" else _ADAPTERS)
    if switch is not None and switch[1] != (method != "full"):
        given = "given" if switch[1] else "not given"
        trains = "all weights" if method == "full" else _words(method)
        fix = "leave it out" if switch[1] else "give it to the script"
        other = "full" if not switch[1] else "qlora" if "qlora" in switch[0].lower() else "lora"
        again = f", or plan again with ⟨method⟩ {other}" if by_options else ""
        return [f"the plan trains {trains}, and --{switch[0]} is {given}: {fix}{again}"]
    if method == "full" and facts.adapters.added_at is not None:
        return [
            f"{facts.adapters.added_at} adds adapters, and the plan trains all weights: the run takes less "
            f"memory than predicted{'; plan again with ⟨method⟩ lora or qlora' if by_options else ''}"
        ]
    if method != "full" and not _names(facts, _SIGNS_OF_ADAPTERS):
        return [
            f"the plan trains {_words(method)}, and nothing in the script's source adds adapters (peft): it "
            "may train all weights, which takes more memory than predicted"
        ]
    return []


def _trls_adapters(options: ScriptOptions, lora: Lora) -> str:
    """TRL's options for the plan's adapters, but for those that are given or the default."""
    words = [TRLS_SWITCH]
    rank, targets = options.given("lora_r"), options.given_list("lora_target_modules")
    if number(rank[0] if rank is not None else _TRLS_RANK) != lora.rank:
        words.append(f"--lora_r {lora.rank}")
    if targets is None or set(targets[0]) != set(lora.targets):
        words.append(f"--lora_target_modules {' '.join(lora.targets)}")
    return " ".join(words)


def _of_four_bits(options: ScriptOptions, method: str, by_options: bool) -> list[str]:
    facts = options.facts
    if takes_model_config(facts):  # whose load_in_4bit under another plan is known already
        bits = options.given("load_in_4bit")
        packed = TRAINERS["trl"].arguments["packed"].format(dtype="bfloat16")
        if method == "qlora" and (bits is None or truth(bits[0]) is not True):
            return [_not_packed("--load_in_4bit is not given", packed, by_options)]
        dtype = options.given("dtype")
        if method == "qlora" and (dtype is None or dtype[0] == "float32"):
            return [
                f"{'--dtype is float32 by default' if dtype is None else dtype[1]}: products of 4-bit "
                f"weights in fp32, which the plan does not count: give the script {packed}"
            ]
        return []
    switch = _switch(options, _FOUR_BITS)
    if switch is not None and switch[1] != (method == "qlora"):
        if method == "qlora":
            return [_not_packed(f"--{switch[0]} is not given", f"--{switch[0]}", by_options)]
        again = ", or plan again with ⟨method⟩ qlora" if by_options else ""
        return [
            f"--{switch[0]} is given, and the plan does not hold the weights in 4 bits: leave it out{again}"
        ]
    if method == "qlora" and not _names(facts, _SIGNS_OF_FOUR_BITS):
        return [_not_packed("nothing in the script's source loads them so")]
    return []


def _of_rank(options: ScriptOptions, lora: Lora, by_options: bool) -> list[str]:
    name = next((name for name in _RANKS if _declares(options.facts, name)), None)
    if name is None:
        return []
    given = options.given(name)
    default = _TRLS_RANK if takes_model_config(options.facts) else options.facts.field_defaults.get(name)
    rank = number(given[0] if given is not None else default)
    if rank is None or rank == lora.rank:
        return []
    location = given[1] if given is not None else f"--{name} is {rank} by default"
    return [
        f"{location}, but the plan has adapters of rank {lora.rank}: give the script --{name} {lora.rank}"
        f"{f', or plan again with ⟨lora_rank⟩ {rank}' if by_options else ''}"
    ]


def _of_targets(options: ScriptOptions, lora: Lora, by_options: bool) -> list[str]:
    """PEFT's own default are a few layers of each model (its ``constants.py``)."""
    planned = f"adapters on {'all linear layers (all-linear)' if _is_all(lora) else ', '.join(lora.targets)}"
    if takes_model_config(options.facts):
        return _of_trls_targets(options, lora, planned, by_options)
    written = options.facts.adapters.targets
    if written is None or set(written.names) == set(lora.targets):
        return []
    names = '"all-linear"' if _is_all(lora) else json.dumps(list(lora.targets))
    return [
        f"{written.location}: target_modules is {', '.join(written.names)}, but the plan has {planned}: "
        f"write target_modules={names} there{_or_targets(written.names, by_options)}"
    ]


def _of_trls_targets(options: ScriptOptions, lora: Lora, planned: str, by_options: bool) -> list[str]:
    given = options.given_list("lora_target_modules")
    fix = f"give the script --lora_target_modules {' '.join(lora.targets)}"
    if given is None:  # may be the modules that were planned, where they are named
        few = (
            f"--lora_target_modules is not given, so PEFT takes few layers, but the plan has {planned}: {fix}"
        )
        return [few] if _is_all(lora) else []
    names, location = given
    if set(names) == set(lora.targets) or (names == ("all-linear",) and not _is_all(lora)):
        return []
    return [f"{location}, but the plan has {planned}: {fix}{_or_targets(names, by_options)}"]


def _or_targets(names: Sequence[str], by_options: bool) -> str:
    return f", or plan again with ⟨lora_targets⟩ {','.join(names)}" if by_options else ""


def _is_all(lora: Lora) -> bool:
    return lora.targets == ("all-linear",)


def _switch(options: ScriptOptions, pattern: re.Pattern[str]) -> tuple[str, bool] | None:
    """A switch of the script's own of such a name that is off by default, and whether one is given."""
    facts = options.facts
    switches = {flag.lstrip("-") for flag in facts.flags}
    switches |= {name for name, default in facts.field_defaults.items() if default is False}
    named = sorted(name for name in switches if pattern.fullmatch(name.replace("-", "_").lower()))
    for name in named:
        given = options.given(name.replace("-", "_"))
        if given is not None and truth(given[0]) is True:
            return name, True
    return (named[0], False) if named else None


def takes_model_config(facts: ScriptFacts) -> bool:
    """Whether the fields of TRL's ModelConfig are options of the script."""
    return "ModelConfig" in facts.mentions and bool(facts.mentions & PARSERS_OF_DATACLASSES)


def _declares(facts: ScriptFacts, name: str) -> bool:
    own = {f"--{name}", f"--{name.replace('_', '-')}"} & facts.options or name in facts.field_defaults
    return bool(own) or (name == "lora_r" and takes_model_config(facts))


def _names(facts: ScriptFacts, signs: tuple[str, ...]) -> bool:
    """Whether anything in the source, or in the user's file of settings, is called so."""
    words = (*facts.mentions, *facts.keywords, *facts.fields, *facts.options)
    return any(sign in word.lower() for word in words for sign in signs)


def _words(method: str) -> str:
    return "LoRA adapters" if method == "lora" else "QLoRA adapters"


def _not_packed(why: str, option: str = "", by_options: bool = False) -> str:
    again = ", or plan again with ⟨method⟩ lora" if by_options else ""
    fix = f"; give the script {option}{again}" if option else ""
    return f"the plan holds the weights in 4 bits, and {why}: they take four times as much{fix}"
