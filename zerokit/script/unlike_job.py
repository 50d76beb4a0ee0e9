"""Whether a script trains the job that its plan counts on, as far as its arguments and source tell: the
method and its adapters, the length of sequences, the loss, the optimizer, and what becomes of the weights.

What is unsure here is warned of, and nothing is refused for it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.domain import planning_again
from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.deepspeed_settings import CONVERTS_A_CHECKPOINT, CONVERTS_ADAPTERS
from zerokit.domain.job import LOSS_OF_SCRIPT, Lora
from zerokit.domain.settings import SETTINGS, unlike_script
from zerokit.domain.trainers import TRAINERS
from zerokit.errors import InputError
from zerokit.machine.versions import installed
from zerokit.rules.known import NOT_MODELLED, TORCH_OPTIMIZERS, is_same_optimizer
from zerokit.script.arguments import ScriptOptions, number, truth
from zerokit.script.reader import PARSERS_OF_DATACLASSES, ScriptFacts
from zerokit.temporary import is_temporary


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTo:
    """The plan that a script is held to.

    Attributes:
        chosen: its choice. request: what it was made from, by option without dashes in front.
        folder: where its files lie.
        method: what it trains: ``full``, ``lora`` or ``qlora``. lora: its adapters.
        by_options: warnings say which options plan for what the script does, as no command beside them does.
        is_judged: a run that is not as planned ends so.
    """

    chosen: Mapping[str, Any]
    request: Mapping[str, Any]
    folder: Path
    seq_len: int
    method: str
    lora: Lora | None
    by_options: bool = True
    is_judged: bool = True

    @property
    def micro_batch(self) -> int:
        """Sequences per GPU and forward pass."""
        return int(self.chosen["micro_batch"])

    @property
    def is_rehearsed(self) -> bool:
        """Whether the plan was made with a script."""
        return isinstance(self.chosen.get("rehearsed"), Mapping)

    @property
    def loss(self) -> str:
        """The loss that a launch is to see to; the script's own where the plan was made with one."""
        return "standard" if self.is_rehearsed else str(self.request.get("loss") or "standard")

    def command_for(self, ran: Mapping[str, str]) -> str:
        """The command that plans with other values of these options, into the same folder if it lasts."""
        folder = None if is_temporary(self.folder) else self.folder
        recipe = None if folder is None else folder / "plan.yaml"
        options = planning_again.options_for(self.chosen, self.request, ran)
        return shlex.join(
            planning_again.command_words(self.request, recipe=recipe, out=folder, options=options)
        )

    def again(self, words: str, joint: str = ", or ") -> str:
        """The way out by planning with other options; empty where a command beside it is named."""
        return f"{joint}plan again with {words}" if self.by_options else ""


# ---------------------------------------------------------------- the method and its adapters

TRLS_SWITCH = "--use_peft"
"""The option of TRL's ModelConfig that has its trainers add adapters."""
_RANKS = SETTINGS["lora_rank"].in_scripts
_TRLS_RANK = 16  # trl/trainer/model_config.py, ModelConfig.lora_r, 0.12 to 1.8
_ADAPTERS = re.compile(r"(?:use_|with_|train_)?(?:q?lora|peft|adapters?)")
_LORA = re.compile(r"(?:use_|with_|train_)?(?:lora|peft|adapters?)")  # that of QLoRA may only quantise
_FOUR_BITS = re.compile(r"(?:\w+_)?(?:4_?bits?|four_?bits?|qlora|nf4|int4)(?:_\w+)?")
_SIGNS_OF_ADAPTERS = ("lora", "peft", "adapter")
_SIGNS_OF_FOUR_BITS = ("bitsandbytes", "4bit", "four_bit", "quantiz", "qlora", "unsloth")
_WITH_A_REFERENCE = ("DPOTrainer", "KTOTrainer", "BCOTrainer", "OnlineDPOTrainer", "NashMDTrainer",
                     "XPOTrainer", "PPOTrainer", "GKDTrainer")  # fmt: skip
_GENERATE = ("GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "NashMDTrainer", "XPOTrainer", "PPOTrainer")


def _is_on(options: ScriptOptions, name: str) -> bool:
    """Whether the user turned a switch on."""
    given = options.given(name)
    return given is not None and truth(given[0]) is True


def trains_adapters(options: ScriptOptions) -> bool:
    """Whether the user asked a script of TRL's for adapters."""
    return _is_on(options, "use_peft")


def takes_model_config(facts: ScriptFacts) -> bool:
    """Whether the fields of TRL's ModelConfig are options of the script."""
    return "ModelConfig" in facts.mentions and bool(facts.mentions & PARSERS_OF_DATACLASSES)


def of_trainer(options: ScriptOptions, held: HeldTo) -> list[str]:
    """What a Trainer's script does besides what a plan decides."""
    if options.style != "trainer":
        return []
    result = []
    if held.method == "full" and trains_adapters(options):
        result.append(
            "warning: --use_peft trains adapters, and the plan trains all weights: the run takes less than "
            f"predicted{held.again('⟨method⟩ lora', '; ')}"
        )
    if held.method != "qlora" and _is_on(options, "load_in_4bit"):
        result.append(
            "warning: --load_in_4bit holds the weights in 4 bits, and the plan does not"
            f"{held.again('⟨method⟩ qlora', '; ')}"
        )
    reference = next((name for name in _WITH_A_REFERENCE if name in options.facts.mentions), None)
    if reference is not None and not trains_adapters(options):
        result.append(
            f"warning: {reference} may hold a reference or another model beside the one that trains, which "
            "the plan does not count: it may take more memory than predicted"
        )
    generating = next((name for name in _GENERATE if name in options.facts.mentions), None)
    if generating is not None:
        result.append(f"warning: {generating} generates between its steps, which the plan does not predict")
    return result


def of_adapters(options: ScriptOptions, held: HeldTo) -> list[str]:
    """Where the script trains other parameters than the plan."""
    if options.facts.unreadable:
        return []
    none_added = _none_added(options, held)
    result = [*none_added, *_four_bits(options, held)]
    if held.lora is not None and not none_added:
        result += [*_rank(options, held, held.lora), *_targets(options, held, held.lora)]
    return [f"warning: {line}" for line in result]


def _none_added(options: ScriptOptions, held: HeldTo) -> list[str]:
    facts, method = options.facts, held.method
    adapters = "LoRA adapters" if method == "lora" else "QLoRA adapters"
    if takes_model_config(facts):  # whose use_peft under a plan for all weights is known already
        if method == "full" or trains_adapters(options):
            return []
        return [
            f"the plan trains {adapters}, and without --use_peft the script trains all weights, which takes "
            f"more memory than predicted: give the script {_trls_adapters(options, held.lora or Lora())}"
        ]
    switch = _switch(options, _LORA if method == "lora" else _ADAPTERS)
    if switch is not None and switch[1] != (method != "full"):
        name, is_given = switch
        other = "full" if not is_given else "qlora" if "qlora" in name.lower() else "lora"
        return [
            f"the plan trains {'all weights' if method == 'full' else adapters}, and --{name} is "
            f"{'given: leave it out' if is_given else 'not given: give it to the script'}"
            f"{held.again(f'⟨method⟩ {other}')}"
        ]
    if method == "full" and facts.adapters.added_at is not None:
        return [
            f"{facts.adapters.added_at} adds adapters, and the plan trains all weights: the run takes less "
            f"memory than predicted{held.again('⟨method⟩ lora or qlora', '; ')}"
        ]
    if method != "full" and not _names(facts, _SIGNS_OF_ADAPTERS):
        return [
            f"the plan trains {adapters}, and nothing in the script's source adds adapters (peft): it "
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


def _four_bits(options: ScriptOptions, held: HeldTo) -> list[str]:
    facts, is_planned = options.facts, held.method == "qlora"

    def not_packed(why: str, option: str = "") -> list[str]:
        fix = f"; give the script {option}{held.again('⟨method⟩ lora')}" if option else ""
        return [f"the plan holds the weights in 4 bits, and {why}: they take four times as much{fix}"]

    if takes_model_config(facts):  # whose load_in_4bit under another plan is known already
        packed = TRAINERS["trl"].arguments["packed"].format(dtype="bfloat16")
        if is_planned and not _is_on(options, "load_in_4bit"):
            return not_packed("--load_in_4bit is not given", packed)
        dtype = options.given("dtype")
        if is_planned and (dtype is None or dtype[0] == "float32"):
            return [
                f"{'--dtype is float32 by default' if dtype is None else dtype[1]}: products of 4-bit "
                f"weights in fp32, which the plan does not count: give the script {packed}"
            ]
        return []
    switch = _switch(options, _FOUR_BITS)
    if switch is not None and switch[1] != is_planned:
        if is_planned:
            return not_packed(f"--{switch[0]} is not given", f"--{switch[0]}")
        again = held.again("⟨method⟩ qlora")
        return [
            f"--{switch[0]} is given, and the plan does not hold the weights in 4 bits: leave it out{again}"
        ]
    if is_planned and not _names(facts, _SIGNS_OF_FOUR_BITS):
        return not_packed("nothing in the script's source loads them so")
    return []


def _rank(options: ScriptOptions, held: HeldTo, lora: Lora) -> list[str]:
    facts = options.facts

    def is_declared(name: str) -> bool:
        own = {f"--{name}", f"--{name.replace('_', '-')}"} & facts.options or name in facts.field_defaults
        return bool(own) or (name == "lora_r" and takes_model_config(facts))

    name = next(filter(is_declared, _RANKS), None)
    if name is None:
        return []
    given = options.given(name)
    default = _TRLS_RANK if takes_model_config(facts) else facts.field_defaults.get(name)
    rank = number(given[0] if given is not None else default)
    if rank is None or rank == lora.rank:
        return []
    location = given[1] if given is not None else f"--{name} is {rank} by default"
    return [
        f"{location}, but the plan has adapters of rank {lora.rank}: give the script --{name} {lora.rank}"
        f"{held.again(f'⟨lora_rank⟩ {rank}')}"
    ]


def _targets(options: ScriptOptions, held: HeldTo, lora: Lora) -> list[str]:
    """PEFT's own default are a few layers of each model (its ``constants.py``)."""
    is_all = lora.targets == ("all-linear",)
    has = (
        f"the plan has adapters on {'all linear layers (all-linear)' if is_all else ', '.join(lora.targets)}"
    )
    if takes_model_config(options.facts):
        fix = f"give the script --lora_target_modules {' '.join(lora.targets)}"
        given = options.given_list("lora_target_modules")
        if given is None:  # may be the modules that were planned, where they are named
            few = f"--lora_target_modules is not given, so PEFT takes few layers, but {has}: {fix}"
            return [few] if is_all else []
        names, location = given
        if names == ("all-linear",) and not is_all:
            return []
    elif (written := options.facts.adapters.targets) is not None:
        names, listed = written, '"all-linear"' if is_all else json.dumps(list(lora.targets))
        location = f"{options.facts.adapters.targets_at}: target_modules is {', '.join(written)}"
        fix = f"write target_modules={listed} there"
    else:
        return []
    if set(names) == set(lora.targets):
        return []
    return [f"{location}, but {has}: {fix}{held.again('⟨lora_targets⟩ ' + ','.join(names))}"]


def _switch(options: ScriptOptions, pattern: re.Pattern[str]) -> tuple[str, bool] | None:
    """A switch of the script's own of such a name that is off by default, and whether one is given."""
    facts = options.facts
    switches = {flag.lstrip("-") for flag in facts.flags}
    switches |= {name for name, default in facts.field_defaults.items() if default is False}
    named = sorted(name for name in switches if pattern.fullmatch(name.replace("-", "_").lower()))
    given = next((name for name in named if _is_on(options, name.replace("-", "_"))), None)
    if given is not None:
        return given, True
    return (named[0], False) if named else None


def _names(facts: ScriptFacts, signs: tuple[str, ...]) -> bool:
    """Whether anything in the source, or in the user's file of settings, is called so."""
    words = (*facts.mentions, *facts.keywords, *facts.fields, *facts.options)
    return any(sign in word.lower() for word in words for sign in signs)


# ---------------------------------------------------------------- the length of sequences

LENGTHS = SETTINGS["seq_len"].in_scripts


def of_length(options: ScriptOptions, held: HeldTo) -> list[str]:
    """What to say where sequences may not have the planned length; what the data hold decides the rest."""
    unknown = options.facts.option_list.unknown(options.user_arguments)
    if any(name[2:].replace("-", "_") in LENGTHS for name in unknown):
        return []  # given by an option that the script has not: it gets another name before it counts
    planned, longest = held.seq_len, longest_sequence(options)
    own = {name: default for name, default in options.own_defaults.items() if name in LENGTHS}
    given = next((name for name in LENGTHS if options.given(name) is not None), None)
    if longest is None:
        unset = next((name for name, default in own.items() if default is None), None)
        if unset is None or given is not None or "max_length" in options.defaults:
            return []
        return [
            f"warning: --{unset} is not given, so the tokenizer and the model decide how long the script's "
            f"sequences become, and the plan has {planned:,} tokens: give --{unset} {planned}"
            f"{', or plan again with the ⟨seq_len⟩ that they have' if held.by_options else ''}"
        ]
    tokens, location = longest
    if tokens == planned:
        return []
    trainers = "max_length" in options.defaults and options.facts.parses_training_arguments
    defaulted = next((name for name, default in own.items() if default is not None), None)
    name = given or ("max_length" if trainers else defaulted)
    remedies = [] if name is None else [f"give the script {options.spelling(name)} {planned}"]
    if given is not None and options.file is not None and given in options.file.values:
        remedies = [f"write {given}: {planned} in {options.file.path}"]
    remedies += [f"plan again with ⟨seq_len⟩ {tokens}"] if held.by_options else []
    return [
        f"warning: the script cuts sequences at {tokens:,} tokens ({location}), but the plan has "
        f"{planned:,}: it may take {'more' if tokens > planned else 'less'} memory and time than predicted"
        f"{'; ' if remedies else ''}{', or '.join(remedies)}"
    ]


def longest_sequence(options: ScriptOptions) -> tuple[int, str] | None:
    """At how many tokens the script cuts a sequence, and where that stands; None: not known."""
    value = next((value for name in LENGTHS if (value := options.given(name)) is not None), None)
    if value is None and "max_length" in options.defaults:
        value = options.defaults["max_length"], f"max_length is {options.defaults['max_length']} by default"
    if value is None:
        value = next(
            (
                (default, f"{options.spelling(name)} by default")
                for name, default in options.own_defaults.items()
                if name in LENGTHS and default is not None
            ),
            None,
        )
    tokens = number(value[0]) if value is not None else None
    return None if value is None or tokens is None else (tokens, value[1])


# ---------------------------------------------------------------- the loss

_SIGNS = {"chunked": ("chunk",), "liger": ("liger", "Liger"), "cut": ("linear_cross_entropy", "cce_patch")}
"""Parts of the names that a script with such a loss uses."""


def fuses_by_trainer(options: ScriptOptions) -> bool:
    """Whether ``use_liger_kernel`` fuses head and loss: not in a trainer of TRL, which has its own losses."""
    return options.style == "trainer" and not _is_of_trl(options)


def of_loss(options: ScriptOptions, loss: str) -> list[str]:
    """Where nothing in the script looks like the planned loss, and no argument of a Trainer turns it on."""
    if (loss == "liger" and fuses_by_trainer(options)) or _is_seen(options, loss):
        return []
    return [
        f"warning: the plan counts on ⟨loss⟩ {loss}, and the script shows no sign of it: it must "
        f"{LOSS_OF_SCRIPT[loss]}; or plan again without ⟨loss⟩"
    ]


def why_loss_is_left_out(options: ScriptOptions, loss: str) -> str | None:
    """What to say of a loss that was asked for and that the script, which is rehearsed with its own, does not
    compute as far as its source and its arguments tell; None: it does."""
    if loss == "liger" and fuses_by_trainer(options):
        decided = options.decided("use_liger_kernel")
        is_computed = decided is not None and truth(decided[0]) is True
    else:
        is_computed = _is_seen(options, loss)
    if is_computed:
        return None
    return (
        f"⟨loss⟩ {loss} left out: the script shows no sign of it, and is rehearsed with its own loss; to "
        f"plan for it, the script must {LOSS_OF_SCRIPT[loss]}"
    )


def _is_seen(options: ScriptOptions, loss: str) -> bool:
    if loss == "standard" or options.facts.unreadable:
        return True
    if _is_of_trl(options):
        return loss == "chunked"
    names = options.facts.mentions | options.facts.keywords
    return any(sign in name for sign in _SIGNS[loss] for name in names)


def _is_of_trl(options: ScriptOptions) -> bool:
    return "SFTTrainer" in options.facts.mentions or options.facts.package == "trl"


# ---------------------------------------------------------------- the optimizer

_CLASSES = {"Adam", "AdamW", "Adagrad", *TORCH_OPTIMIZERS.values()}
"""Of torch.optim."""


def with_optimizer_of(script: ScriptOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plan, with the optimizer that the script has where none was given.

    Raises:
        InputError: another one was given than the script's, or the script's is not modelled.
    """
    decided = script.decided("optim") if script.style == "trainer" else None
    if decided is None or options.get("inference"):
        return dict(options)
    name, location = str(decided[0]), decided[1]
    if name in NOT_MODELLED:
        raise InputError(
            f"{location}: not modelled: {NOT_MODELLED[name]}; use adamw_torch, or adamw_bnb_8bit, which "
            "keeps its states in 8 bits, or measure with `zerokit launch --no-plan`"
        )
    requested = options.get("optimizer")
    if is_same_optimizer(name, str(requested or "AdamW")):  # the default of a plan and of a Trainer
        return dict(options)
    if requested:
        raise unlike_script("optimizer", requested, location, f"change the script to {requested}")
    return {**options, "optimizer": name}


def made_by_script(request: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The Trainer's name of the optimizer that a plan leaves to the script; None: DeepSpeed makes it."""
    name = request.get("optimizer")
    return str(name) if "optimizer" not in config and client_optimizer(name) is not None else None


def of_optimizer(options: ScriptOptions, config: Mapping[str, Any]) -> list[str]:
    """Where the user's ``optim`` is not the optimizer of DeepSpeed's configuration, which goes first: a
    Trainer then does not look at it (transformers/integrations/deepspeed.py, deepspeed_optim_sched, 5.24)."""
    decided, block = options.decided("optim"), config.get("optimizer")
    if options.style != "trainer" or decided is None or not isinstance(block, Mapping):
        return []
    planned = str(block.get("type"))
    if is_same_optimizer(str(decided[0]), planned):
        return []
    return [
        f"{decided[1]}, but the plan has {planned} in DeepSpeed's configuration, which a Trainer "
        "takes instead"
    ]


def refused_optimizer(options: ScriptOptions, config: Mapping[str, Any]) -> str | None:
    """The optimizer that an Accelerate script makes and prepares beside the file's; None: none, as far as its
    code shows.

    Accelerate takes nothing but a ``DummyOptim`` then (1.15, accelerator.py:2251).
    """
    facts = options.facts
    made = sorted(facts.mentions & _CLASSES)
    decides_itself = "DummyOptim" in facts.mentions or facts.asks_for_optimizer
    if "optimizer" not in config or not made or decides_itself or "prepare" not in facts.mentions:
        return None
    return made[0]


# ---------------------------------------------------------------- the weights that it saves


def of_saves(facts: ScriptFacts, config: Mapping[str, Any], method: str) -> list[str]:
    """What to say where a save of the script's would lose the result of its run, as the plan's ZeRO-3 gathers
    no weights for it.

    Args:
        config: the DeepSpeed configuration that the script gets.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") != 3:
        return []
    if zero.get("stage3_gather_16bit_weights_on_model_save") is True:
        return []
    adapters = method != "full"
    effects = {
        "save_model": f"writes no {'adapters' if adapters else 'weights'} that load",
        "get_state_dict": "ends with an error",  # accelerate 1.15.0, accelerator.py: a ValueError
    }
    major = (installed("transformers") or "").partition(".")[0]
    if adapters and major.isdecimal() and int(major) >= 5:
        del effects["save_model"]  # gathers adapters all the same (trainer.py, ``save_model``, from 5.0 on)
    name = next((name for name in effects if name in facts.mentions), None)
    if name is None:
        return []
    converts = f"{CONVERTS_ADAPTERS} (deepspeed.utils.zero_to_fp32)" if adapters else CONVERTS_A_CHECKPOINT
    return [
        f"warning: the script's {name} {effects[name]}: the plan's ZeRO-3 does not gather the weights "
        "(stage3_gather_16bit_weights_on_model_save is false). Have it save checkpoints (save_strategy), and "
        f"convert one: {converts}"
    ]
