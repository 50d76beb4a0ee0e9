"""What job a script trains, as far as its arguments tell: the method and its adapters, the length of
sequences, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.settings import SETTINGS, Stated, unlike_script
from zerokit.errors import InputError
from zerokit.rules.known import NOT_MODELLED, is_same_optimizer
from zerokit.script.arguments import CHECKPOINTING, ScriptOptions, number, truth
from zerokit.script.reader import PARSERS_OF_DATACLASSES, ScriptFacts

# ---------------------------------------------------------------- what its arguments say

TRLS_SWITCH = "--use_peft"
"""The option of TRL's ModelConfig that has its trainers add adapters."""
_TRLS_RANK = 16  # trl/trainer/model_config.py, ModelConfig.lora_r, 0.12 to 1.8
IN_FP32 = "qlora with products in fp32"
_LENGTH = SETTINGS["seq_len"]


def is_on(options: ScriptOptions, name: str) -> bool:
    """Whether the user turned a switch on."""
    given = options.given(name)
    return given is not None and truth(given[0]) is True


def takes_model_config(facts: ScriptFacts) -> bool:
    """Whether the fields of TRL's ModelConfig are options of the script."""
    return "ModelConfig" in facts.mentions and bool(facts.mentions & PARSERS_OF_DATACLASSES)


def adapters(options: ScriptOptions) -> Iterator[Stated]:
    """What the fields of TRL's ModelConfig say."""
    if not takes_model_config(options.facts):
        return
    typed = [given[1] for name in ("use_peft", "load_in_4bit") if (given := options.given(name)) is not None]
    method = ("qlora" if is_on(options, "load_in_4bit") else "lora") if is_on(options, "use_peft") else "full"
    dtype = options.given("dtype")
    if method == "qlora" and (dtype is None or dtype[0] == "float32"):
        method = IN_FP32
        typed.append("--dtype float32" if dtype is not None else "--dtype is float32 by default")
    where = ", ".join(typed) or f"{TRLS_SWITCH} is not given"
    yield Stated(setting=SETTINGS["method"], value=method, where=where)
    if method == "full":
        return
    rank, targets = options.given("lora_r"), options.given_list("lora_target_modules")
    where = f"--lora_r is {_TRLS_RANK} by default" if rank is None else rank[1]
    value = number(_TRLS_RANK if rank is None else rank[0])
    yield Stated(setting=SETTINGS["lora_rank"], value=value, where=where)
    where = "--lora_target_modules is not given, so PEFT takes few layers" if targets is None else targets[1]
    names = "PEFT's default" if targets is None else " ".join(sorted(targets[0]))
    yield Stated(setting=SETTINGS["lora_targets"], value=names, where=where)


def longest_sequence(options: ScriptOptions) -> Stated | None:
    """At how many tokens the script cuts a sequence; None: not known."""
    own = options.own_defaults
    name = next((name for name in _LENGTH.in_scripts if options.given(name) is not None), None)
    name = name or next((name for name in _LENGTH.in_scripts if own.get(name) is not None), None)
    if name is None:
        return None
    option = options.spelling(name)
    value, where = options.given(name) or (own[name], f"{option} is {own[name]} by default")
    tokens = number(value)
    edit = () if options.file is not None and name in options.file.values else (option,)
    return None if tokens is None else Stated(setting=_LENGTH, value=tokens, where=where, edit=edit)


# ---------------------------------------------------------------- the optimizer


def with_optimizer_of(script: ScriptOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plan, with the optimizer that the script has where none was given. Raises InputError:
    another one was given than the script's, or the script's is not modelled."""
    decided = script.decided("optim") if script.style == "trainer" else None
    if decided is None or options.get("inference"):
        return dict(options)
    name, location = str(decided[0]), decided[1]
    if name in NOT_MODELLED:
        raise InputError(
            f"{location}: not modelled: {NOT_MODELLED[name]}; use adamw_torch, or adamw_bnb_8bit (under "
            "FSDP2 adamw_torch_8bit), which keeps its states in 8 bits, or "
            "measure with `zerokit launch --no-plan`"
        )
    requested = options.get("optimizer")
    if is_same_optimizer(name, str(requested or "AdamW")):  # the default of a plan and of a Trainer
        return dict(options)
    if requested:
        raise unlike_script("optimizer", requested, location, f"change the script to {requested}")
    return {**options, "optimizer": name}


def by_trainer(options: ScriptOptions) -> Iterator[Stated]:
    """What a Trainer's arguments say of checkpointing and of the optimizer."""
    if options.style != "trainer":
        return
    switch, optimizer = options.decided(CHECKPOINTING.trainer), options.decided("optim")
    if switch is not None and (is_on := truth(switch[0])) is not None:
        yield Stated(setting=CHECKPOINTING, value="full" if is_on else "none", where=switch[1])
    if optimizer is not None:
        yield Stated(setting=SETTINGS["optimizer"], value=str(optimizer[0]), where=optimizer[1])
