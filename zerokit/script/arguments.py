"""What a script is given on its command line and in files, and what of a plan it can be told by that.

DeepSpeed's configuration does not decide everything. A Trainer takes its batch from
``TrainingArguments``, a data loader from the script, and activation checkpointing is turned on by the
script. So that several plans can be tried, the script gets them by options that it declares, or
where the user wrote ``{micro_batch}``, ``{gradient_accumulation}`` or ``{checkpointing}``; what it leaves
no way to change is fixed before planning.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.domain.settings import BY_ARGUMENT, SETTINGS, PlannedValues, Stated
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.files import read_regular
from zerokit.rules.known import is_same_optimizer
from zerokit.script.reader import ARGUMENT_FILES, PARSERS_OF_DATACLASSES, ScriptFacts
from zerokit.suggest import much_alike

_LARGEST_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentFile:
    """A JSON or YAML file with the values of options; ``replaces_options``: it stands in the place of all
    options, so none can be added beside it."""

    path: str
    replaces_options: bool
    values: Mapping[str, object] = field(default_factory=dict)


def argument_file(arguments: Sequence[str], facts: ScriptFacts) -> ArgumentFile | None:
    """The file that ``--config FILE`` names, or the one given in place of all options. Raises InputError: a
    script that parses TrainingArguments would read it, and it does not exist."""
    parses = facts.parses_training_arguments or not facts.options
    first = arguments[0] if arguments else ""
    if first.endswith(ARGUMENT_FILES) and not first.startswith("-") and parses:
        _check_exists(first, facts, first)
        return ArgumentFile(path=first, replaces_options=True, values=_read(first))
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config" and (equals or index + 1 < len(arguments)):
            path = value if equals else arguments[index + 1]
            if path.endswith(ARGUMENT_FILES):
                _check_exists(path, facts, f"--config {path}")
                return ArgumentFile(path=path, replaces_options=False, values=_read(path))
    return None


def _check_exists(path: str, facts: ScriptFacts, option: str) -> None:
    """Other scripts may look for it in a folder of their own, and some tools take an address."""
    if facts.parses_training_arguments and "://" not in path and not Path(path).exists():
        raise InputError(
            f"{option}: the script's arguments file {Path(path).absolute()} does not exist; correct the path"
        )


def _read(name: str) -> dict[str, object]:
    """Keys at the top, and those of sections where they say nothing else; empty if it cannot be read
    (then the script itself will say why)."""
    path = Path(name)
    with suppress(OSError, ValueError, RecursionError):
        text = read_regular(path, _LARGEST_FILE_BYTES).decode("utf-8-sig")
        if path.suffix == ".json":
            body: Any = json.loads(text)
        else:
            import yaml

            try:
                body = yaml.safe_load(text)
            except yaml.YAMLError:
                return {}
        values: dict[str, object] = {}
        for section in (body, *body.values()) if isinstance(body, dict) else ():
            if isinstance(section, dict):
                values = {**{str(key): value for key, value in section.items()}, **values}
        return values
    return {}


def means(option: str, spelt: set[str], exact: frozenset[str] | None) -> bool:
    """Whether ``option`` is one that is ``spelt`` so, or argparse takes it for one.

    argparse takes any beginning of an option that it has and that is no other of them itself, and ends where
    several begin so. ``exact``: all that the script's parser has; None where that is not argparse.
    """
    if option in spelt or exact is None or option in exact:
        return option in spelt
    known = spelt & exact
    return option.startswith("--") and len(option) > len("--b") and any(e.startswith(option) for e in known)


TOLD = tuple(
    SETTINGS[name]
    for name in ("micro_batch", "gradient_accumulation", "activation_checkpointing", "optimizer",
                 "bf16.enabled", "fp16.enabled", "loss")
)  # fmt: skip
"""What of a plan a Trainer's arguments say that changes memory or time; the first three any script's."""
MICRO_BATCH, ACCUMULATION, CHECKPOINTING = TOLD[:3]
PLACEHOLDERS = (MICRO_BATCH.placeholder, ACCUMULATION.placeholder, CHECKPOINTING.placeholder)
"""The words in a script's arguments that ``zerokit tune`` fills in from each plan."""
_BRACES = re.compile(r"\{[\w-]+\}")
_SCRIPTS_OWN = frozenset({"{checkpoint}", "{checkpoints}"})
"""Braces that are like a placeholder, but more likely stand in a path."""
NO = ("false", "0", "no", "none", "off", "null", "")
"""How a switch is turned off."""
_NUMBERS = (MICRO_BATCH.trainer, ACCUMULATION.trainer)
_DEFAULTS = {name: row.default for name, row in BY_ARGUMENT.items() if row.default is not None}
_CHECKPOINTING_CALLS = {"gradient_checkpointing_enable", "checkpoint_sequential", "checkpoint_wrapper",
                        "apply_activation_checkpointing"}  # fmt: skip


def truth(value: object) -> bool | None:
    """Of a switch, as text or as a value; None: neither (``auto``)."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    return None if text == "auto" else text not in NO


def number(value: object) -> int | None:
    """A positive whole number, as text or as a value; None: anything else."""
    if isinstance(value, str):
        value = int(value) if value.isdigit() else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def is_like(actual: object, planned: object) -> bool:
    """Whether a value does not contradict the plan's; what is computed or ``auto`` is not known to."""
    if isinstance(planned, bool):
        return actual is None or truth(actual) in (None, planned)
    if isinstance(planned, str):  # an optimizer, some of which have two names
        return actual is None or is_same_optimizer(str(actual), planned)
    return number(actual) in (None, planned)


def refuse_misspelt(arguments: Sequence[str]) -> None:
    """Stop at braces that hold a name like a placeholder's; others are the script's own. Raises InputError:
    names them, and the placeholder that was probably meant."""
    for braces in (found for word in arguments for found in _BRACES.findall(word)):
        name = braces.lower().replace("-", "_")
        meant = [] if braces in PLACEHOLDERS or name in _SCRIPTS_OWN else much_alike(name, PLACEHOLDERS)
        if meant:
            raise InputError(f"{braces} in the script's arguments is not filled in; did you mean {meant[0]}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What a tool that fine-tunes from a file of its own, known by its package, takes beside it.

    Attributes:
        deepspeed_option: by which it takes a DeepSpeed file; None: it follows the environment.
        assigns: ``KEY=VALUE`` after the file counts more than the file.
        negated: its names for the opposite of fields of TrainingArguments.
        defaults: values that it gives such fields where nobody does.
    """

    deepspeed_option: str | None = None
    assigns: bool = False
    negated: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


_ANY = Tool()
_TOOLS: Mapping[str, Tool] = {
    # Its loader places the model by its own setting, not by Accelerate's (0.19, loaders/model.py:454, 917).
    "axolotl": Tool(deepspeed_option="--deepspeed"),
    # 0.9.5, hparams/parser.py:91 and model/model_utils/checkpointing.py:164
    "llamafactory": Tool(
        assigns=True,
        negated={"gradient_checkpointing": "disable_gradient_checkpointing"},
        defaults={"gradient_checkpointing": True},
    ),
}


def tool_of(package: str | None) -> Tool:
    """The tool of an installed package; one that takes nothing beside its file where it is not known."""
    return _TOOLS.get(package or "", _ANY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How one script, with the arguments that the user gave, can be told of a plan. ``style``: how it takes
    its configuration (``zerokit.script.reader``). ``file``: of arguments, that the script reads."""

    facts: ScriptFacts
    style: str
    user_arguments: tuple[str, ...]
    file: ArgumentFile | None = None

    @classmethod
    def read(cls, facts: ScriptFacts, style: str, arguments: tuple[str, ...]) -> ScriptOptions:
        """With the files that the arguments name (InputError: one is not there)."""
        file = argument_file(arguments, facts)
        return cls(facts=facts, style=style, user_arguments=arguments, file=file)

    @property
    def _tool(self) -> Tool:
        return tool_of(self.facts.package)

    @property
    def _is_file_alone(self) -> bool:
        return self.file is not None and self.file.replaces_options

    @property
    def _takes_trainer_options(self) -> bool:
        """All fields of TrainingArguments are options; a file in their place is not added to, but by the
        assignments of a tool that reads them."""
        added_to = self._tool.assigns or not self._is_file_alone
        return self.style == "trainer" and self.facts.parses_training_arguments and added_to

    def _declared(self, names: tuple[str, ...]) -> str | None:
        """The option of one of these names that the script's own parser has."""
        for name in names:
            for option in (f"--{name}", f"--{name.replace('_', '-')}"):
                if option in self.facts.options:
                    return option
        return f"--{names[0]}" if self._takes_trainer_options else None

    @property
    def told(self) -> frozenset[str]:
        """Arguments of ``zerokit.plan`` whose value the script's own options say."""
        return frozenset(
            one.argument for one in (MICRO_BATCH, ACCUMULATION) if self._declared(self._names(one.trainer))
        )

    # ---------------------------------------------------------------- what the user gave

    def given(self, *names: str) -> tuple[object, str] | None:
        """What the user gave for an option, by the command line or in a file, and how it is written there.
        ``names``: of the option; the first that is found counts."""
        if (typed := self._typed(names)) is not None:
            option, values = typed
            if values is None:
                return "false", option
            first = values[0] if values else "true"
            return first, f"{option} {first}"
        if self.file is not None:
            for name in names:
                if name in self.file.values:
                    return self.file.values[name], f"{self.file.path}: {name}: {self.file.values[name]}"
        opposite = next((self._tool.negated[name] for name in names if name in self._tool.negated), None)
        value = self.given(opposite) if opposite is not None else None
        return None if value is None else (truth(value[0]) is False, value[1])

    def given_list(self, name: str) -> tuple[tuple[str, ...], str] | None:
        """The same of an option that takes several values (``--lora_target_modules q_proj v_proj``)."""
        value = self.given(name)
        if value is None:
            return None
        if (typed := self._typed((name,))) is not None:
            option, values = typed
            return values or (), " ".join((option, *(values or ())))
        first, location = value
        return tuple(map(str, first if isinstance(first, list | tuple) else [first])), location

    def _typed(self, names: tuple[str, ...]) -> tuple[str, tuple[str, ...] | None] | None:
        """The option as it is typed and all that follows it to the next one, as the script's own parser takes
        it; None for its values where it is turned off (``--no_…``)."""
        known = set(self.facts.options)
        if self.facts.parses_training_arguments:
            known |= {f"--{name}" for name in _DEFAULTS}
        spelt, negated = (
            {f"--{text}" for name in names for text in (begin + name, (begin + name).replace("_", "-"))}
            for begin in ("", "no_")
        )
        for index, argument in enumerate(self.user_arguments):
            option, equals, value = argument.partition("=")
            if not self.facts.parses_training_arguments and self.facts.lacks(option):
                continue
            if option in negated:
                return option, None
            assigned = self._is_file_alone and equals and option in names
            if not assigned and not means(option, spelt, frozenset(known) or None):
                continue
            if equals:
                return option, (value,)
            following = self.user_arguments[index + 1 :]
            return option, tuple(itertools.takewhile(lambda word: not word.startswith("--"), following))
        return None

    def decided(self, name: str) -> tuple[object, str] | None:
        """What the user gave for an option of a Trainer's, else a literal of the source; and where."""
        value = self.given(name)
        if value is not None:
            return value
        fields = self.facts.field_defaults if self.facts.parses_training_arguments else {}
        literal = fields.get(name, self.facts.batch_arguments.get(name))
        return None if literal is None else (literal, self._where(name))

    @property
    def own_defaults(self) -> dict[str, object]:
        """Literal defaults of the script's own options; fields only of classes that a parser reads, as
        elsewhere a ``block_size`` is a model's."""
        parses = self.facts.mentions & PARSERS_OF_DATACLASSES
        return {**(self.facts.field_defaults if parses else {}), **self.facts.option_defaults}

    def spelling(self, name: str) -> str:
        """An option as the script's own parser has it."""
        dashed = f"--{name.replace('_', '-')}"
        return dashed if dashed in self.facts.options else f"--{name}"

    @property
    def own_deepspeed_file(self) -> tuple[str, str] | None:
        """The DeepSpeed file that the script takes by itself in place of a plan's, and where it is named."""
        name = {"trainer": "deepspeed", "raw": "deepspeed_config"}.get(self.style)
        value, where = (self.decided(name) if name is not None else None) or (None, "")
        return (value, where) if isinstance(value, str) and value.lower() not in (*NO, "true") else None

    @property
    def feeds_peers_alike(self) -> bool:
        """Whether ranks that share a batch are given the same one, as Accelerate's loader does."""
        return self.style in ("accelerate", "trainer")

    @property
    def runs_without_deepspeed(self) -> bool:
        """Whether it trains by itself where nobody gives it a DeepSpeed configuration."""
        return self.style in ("trainer", "accelerate") and "DeepSpeedPlugin" not in self.facts.mentions

    # ---------------------------------------------------------------- what is fixed

    def fixed(self) -> list[Stated]:
        """What the script decides of batch, checkpointing and precision, so that no plan can: its value, and
        where. What computes is not among it: the run tells."""
        found = []
        if (mode := self._fixed_checkpointing()) is not None:
            effect = "leaves it off" if mode == "none" else "turns it on"
            where = f"the script {effect}, and has no option for it that is known"
            found.append(Stated(setting=CHECKPOINTING, value=mode, where=where))
        numbers = [replace(one, value=number(one.value)) for one in self.stated()[:2]]
        return [*found, *(one for one in (*numbers, *self._fixed_precision()) if one.value is not None)]

    def _fixed_precision(self) -> list[Stated]:
        """What a Trainer's script trains in, which is 32 bits unless its TrainingArguments say otherwise, and
        why; empty: options of the run decide."""
        by_user = {name: self.given(name) for name in ("bf16", "fp16")}
        if self.style != "trainer" or (self._takes_trainer_options and not any(by_user.values())):
            return []
        chosen, where = "fp32", "the script's TrainingArguments name neither bf16 nor fp16"
        for name, setting in by_user.items():
            value = truth(setting[0]) if setting is not None else self._of_script(name)
            if value is None:  # only the run will tell
                return []
            if value is True:
                chosen, where = name, "the script decides it"
                break
        return [Stated(setting=SETTINGS["precision"], value=chosen, where=where)]

    def _of_script(self, name: str) -> object:
        """What the script's source or its arguments class has; None: computed, or not known."""
        if name in self._tool.defaults:
            return self._tool.defaults[name]
        default = _DEFAULTS.get(name)
        # an arguments class that is not Transformers' own: a rehearsal tells its defaults
        other = any(not one.startswith("transformers.") for one in self.facts.argument_classes)
        if self.facts.parses_training_arguments:
            return None if other else self.facts.field_defaults.get(name, default)
        is_known = self.facts.spells_out_arguments and not self.facts.hides_arguments and not other
        return self.facts.batch_arguments.get(name, default if is_known else None)

    def _fixed_checkpointing(self) -> str | None:
        if self._said(CHECKPOINTING.trainer):
            return None
        by_user = self.given(*CHECKPOINTING.in_scripts)
        if by_user is not None:
            return "none" if truth(by_user[0]) is False else "full"
        if self._takes_trainer_options or self._declared(CHECKPOINTING.in_scripts) in self.facts.flags:
            return None
        literal = self.facts.batch_arguments.get(CHECKPOINTING.trainer)
        if "selective_checkpointing" in self.facts.mentions:
            return "selective"
        return "full" if literal is True or self.facts.mentions & _CHECKPOINTING_CALLS else "none"

    def _has(self, name: str, *, added: bool = True) -> tuple[object, str] | None:
        """What the script has of a Trainer's argument, and where, unless an option is to be ``added`` for it;
        None: the plan's, or another's matter."""
        names = self._names(name)
        given = None if self._said(name) else self.given(*names)
        if given is not None or self._said(name):
            return given
        takes = self._takes_trainer_options or (name in _NUMBERS and self._declared(names) is not None)
        is_own = self.style == "trainer" and not (added and takes)
        return (self._of_script(name), self._where(name)) if is_own else None

    # ---------------------------------------------------------------- what is added, what contradicts

    def arguments(self, strategy: Strategy) -> tuple[str, ...]:
        """The user's arguments, filled in, and the script's options that this strategy needs."""
        planned = PlannedValues.of(strategy)
        full = planned.checkpointing == "full"
        values = (str(planned.micro_batch), str(planned.gradient_accumulation), "true" if full else "false")
        filled = list(self.user_arguments)
        for placeholder, value in zip(PLACEHOLDERS, values, strict=True):
            filled = [argument.replace(placeholder, value) for argument in filled]
        added = self.additions(planned)
        cut = filled.index("--") if "--" in filled else len(filled)
        return (*filled[:cut], *added, *filled[cut:])

    def additions(self, planned: PlannedValues) -> tuple[str, ...]:
        """The options that tell the script what the plan decided, where the user gave nothing."""
        added: list[str] = []
        values = planned.trainer_values()
        if self._takes_trainer_options:
            for half, other in (("bf16", "fp16"), ("fp16", "bf16")):  # TrainingArguments refuse both
                if (given := self.given(other)) is not None and truth(given[0]):
                    values.pop(half, None)
            for name, value in values.items():
                is_open = self.given(*BY_ARGUMENT[name].in_scripts) is None and not self._said(name)
                if is_open and self._of_script(name) != value:
                    added += self._spelt(name, value)
            if planned.on_cpu and planned.precision == "bf16" and self.given("use_cpu") is None:
                added += self._spelt("use_cpu", True)  # or TrainingArguments refuse bf16 without a GPU
            return tuple(added)
        for name in _NUMBERS:
            names = self._names(name)
            option = self._declared(names)
            if option is not None and not self._said(name) and self.given(*names) is None:
                added += [option, str(values[name])]
        return (*added, *(self.words_for_checkpointing() if planned.checkpointing == "full" else ()))

    def _names(self, name: str) -> tuple[str, ...]:
        """How the option may be called; a script may pass on one of its own, ``--batch-size``."""
        own = self.facts.passed_on.get(name) if name in _NUMBERS else None
        return (*BY_ARGUMENT[name].in_scripts, *([own] if own is not None else ()))

    def _spelt(self, name: str, value: object) -> list[str]:
        if not self._is_file_alone:
            return [f"--{name}", str(value)]
        if name in self._tool.negated:
            name, value = self._tool.negated[name], not value
        return [f"{name}={value}"]

    def words_for_checkpointing(self) -> tuple[str, ...]:
        """What turns it on if added to the arguments; empty: no option is known, or they say it already."""
        if self.given(*CHECKPOINTING.in_scripts) is not None or self._said(CHECKPOINTING.trainer):
            return ()
        if self._takes_trainer_options:
            return tuple(self._spelt(CHECKPOINTING.trainer, True))
        option = self._declared(CHECKPOINTING.in_scripts)
        return (option,) if option is not None and option in self.facts.flags else ()

    def _said(self, name: str) -> bool:
        """Whether a placeholder in the user's arguments says it already."""
        setting = BY_ARGUMENT[name]
        return setting.placeholder in PLACEHOLDERS and setting.placeholder in " ".join(self.user_arguments)

    def stated(self, *, added: bool = True) -> list[Stated]:
        """What it has of :data:`TOLD`; None: the plan's, or another's matter. ``added``: whether
        :meth:`additions` reach the script."""
        # the precision of others than a Trainer is DeepSpeed's matter
        told = TOLD if self.style == "trainer" else TOLD[:3]
        found = ((row, self._has(row.trainer, added=added) or (None, "")) for row in told)
        return [Stated(setting=row, value=value, where=where) for row, (value, where) in found]

    def _where(self, name: str) -> str:
        value = self._of_script(name)
        if name in self.facts.batch_arguments or name in self.facts.field_defaults:
            return f"{self.facts.path} sets {name} {value}"
        if self._is_file_alone and self.file is not None:
            return f"{self.file.path} has no {name}, whose default is {value}"
        return f"{name} is {value} by default"
