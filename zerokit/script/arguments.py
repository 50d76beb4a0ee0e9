"""What a plan needs of the script itself: its batch and its checkpointing, given by the script's own options.

DeepSpeed's configuration does not decide everything. A Trainer takes its batch from
``TrainingArguments``, a data loader from the script, and activation checkpointing is turned on by the
script. So that several plans can be tried, the script gets them by options that it declares, or
where the user wrote ``{micro_batch}``, ``{gradient_accumulation}`` or ``{checkpointing}``; what it leaves
no way to change is fixed before planning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.script.code_settings import bound_value, own_option
from zerokit.script.option_values import ACCUMULATION, CHECKPOINTING, MICRO_BATCH, NO, differs, number, truth
from zerokit.script.placeholders import PLACEHOLDERS
from zerokit.script.planned_values import PlannedValues
from zerokit.script.reader import PARSERS_OF_DATACLASSES, ScriptFacts
from zerokit.script.tools import Tool, tool_of
from zerokit.script.trainer_arguments import ArgumentFile, argument_file, installed_values
from zerokit.script.typed_options import TypedOptions
from zerokit.search.space import Pins

_NUMBERS = (MICRO_BATCH[0], ACCUMULATION[0])
_CHECKPOINTING_CALLS = {"gradient_checkpointing_enable", "checkpoint_sequential", "checkpoint_wrapper",
                        "apply_activation_checkpointing"}  # fmt: skip
TRAINERS_OWN: dict[str, object] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "gradient_checkpointing": False,
    "bf16": False, "fp16": False, "max_grad_norm": 1.0, "optim": "adamw_torch_fused",
    "use_liger_kernel": False,
}  # fmt: skip
"""Defaults of transformers/training_args.py, 4.56 to 5.23; TRL's are read from its installed classes."""

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "per_device_train_batch_size": MICRO_BATCH,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_checkpointing": CHECKPOINTING,
}
_ONLY_TOLD = frozenset({"max_grad_norm"})  # changes neither memory nor time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How one script, with the arguments that the user gave, can be told of a plan.

    Attributes:
        style: how it takes its configuration (``zerokit.script.reader``).
        file: of arguments, that the script reads.
        defaults: what its installed arguments class has where nothing is given; empty where not known.
    """

    facts: ScriptFacts
    style: str
    user_arguments: tuple[str, ...]
    file: ArgumentFile | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, facts: ScriptFacts, style: str, arguments: tuple[str, ...]) -> ScriptOptions:
        """With the files that the arguments name (InputError: one is not there), and the installed class."""
        file = argument_file(arguments, facts)
        takes_defaults = style == "trainer" and not (file and file.replaces_options)
        defaults = installed_values(facts, arguments) if takes_defaults else {}
        return cls(facts=facts, style=style, user_arguments=arguments, file=file, defaults=defaults)

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
    def _typed(self) -> TypedOptions:
        known_options = set(self.facts.options)
        if self.facts.parses_training_arguments:
            known_options |= {f"--{name}" for name in (*TRAINERS_OWN, *self.defaults)}
        return TypedOptions(
            arguments=self.user_arguments,
            exact=frozenset(known_options) or None,
            unknown=frozenset(self.facts.option_list.unknown(self.user_arguments)),
            are_assignments=self._is_file_alone,
        )

    def given(self, name: str) -> tuple[object, str] | None:
        """What the user gave for an option, by the command line or in a file, and how it is written there."""
        return self._user_value((name,))

    def given_list(self, name: str) -> tuple[tuple[str, ...], str] | None:
        """The same of an option that takes several values (``--lora_target_modules q_proj v_proj``)."""
        value = self.given(name)
        if value is None:
            return None
        if (typed := self._typed.values((name,))) is not None:
            return typed
        first, location = value
        return tuple(map(str, first if isinstance(first, list | tuple) else [first])), location

    def decided(self, name: str) -> tuple[object, str] | None:
        """What the user gave for an option of a Trainer's, else a literal of the source; and where."""
        value = self._user_value((name,))
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

    def _user_value(self, names: tuple[str, ...]) -> tuple[object, str] | None:
        """The value in the user's arguments or in the file that they name, and where it stands."""
        if (value := self._typed.value(names)) is not None:
            return value
        if self.file is not None:
            for name in names:
                if name in self.file.values:
                    return self.file.values[name], f"{self.file.path}: {name}: {self.file.values[name]}"
        return self._opposite_value(names)

    def _opposite_value(self, names: tuple[str, ...]) -> tuple[object, str] | None:
        opposite = next((self._tool.negated[name] for name in names if name in self._tool.negated), None)
        opposite_value = self._user_value((opposite,)) if opposite is not None else None
        return None if opposite_value is None else (truth(opposite_value[0]) is False, opposite_value[1])

    # ---------------------------------------------------------------- what is fixed

    def pins(self, pins: Pins) -> tuple[Pins, tuple[str, ...]]:
        """``pins`` with what the script decides, and a note for each.

        Accelerate feeds the peers of a tensor parallel group alike, so there that is searched too.

        Raises:
            InputError: a batch size was asked for that is not the script's.
        """
        notes: list[str] = []
        if self.style in ("accelerate", "trainer"):
            pins = replace(pins, search_tensor=True)
        if pins.checkpointing is None and (mode := self._fixed_checkpointing()) is not None:
            pins = replace(pins, checkpointing=mode)
            effect = "leaves it off" if mode == "none" else "turns it on"
            notes.append(f"checkpointing {mode}: the script {effect}, and has no option for it that is known")
        micro = self._fixed_number(MICRO_BATCH[0], "{micro_batch}")
        steps = self._fixed_number(ACCUMULATION[0], "{gradient_accumulation}")
        self._refuse_unlike("⟨micro_batch⟩", pins.micro_batch, micro, MICRO_BATCH[0])
        self._refuse_unlike("⟨gradient_accumulation⟩", pins.gradient_accumulation, steps, ACCUMULATION[0])
        if pins.micro_batch is None and micro is not None:
            notes.append(f"micro-batch {micro}: the script decides it")
            pins = replace(pins, micro_batch=micro)
        if pins.gradient_accumulation is None and steps is not None:
            notes.append(f"accumulation {steps}: the script decides it")
            pins = replace(pins, gradient_accumulation=steps)
        return pins, tuple(notes)

    def _refuse_unlike(self, option: str, asked: object, decided: object, name: str) -> None:
        """Stop where the script does something else than was asked for: its rehearsal would, too."""
        if asked is None or decided is None or asked == decided:
            return
        by_user = self._user_value(self._names(name))
        location = by_user[1] if by_user is not None else self._where(name)
        raise InputError(f"{option} {asked}: {location}; leave {option} out, or change the script to {asked}")

    def precision(self, requested: str) -> tuple[str, tuple[str, ...]]:
        """The precision to plan for, and a note where the script decides it.

        A Trainer trains in what its TrainingArguments say, 32 bits unless they say otherwise.

        Raises:
            InputError: another one was asked for than the script's.
        """
        decided, why = self._decided_precision()
        if decided is None:
            return requested, ()
        if requested in ("auto", decided):
            return decided, () if requested == decided else (f"precision {decided}: {why}",)
        raise InputError(
            f"⟨precision⟩ {requested}: {why}, so it trains in {decided}; leave ⟨precision⟩ out, or change "
            "the script"
        )

    def _decided_precision(self) -> tuple[str | None, str]:
        """What a Trainer's script trains in, and why; None: options of the run decide, or it is computed."""
        by_user = {name: self._user_value((name,)) for name in ("bf16", "fp16")}
        if self.style != "trainer" or (self._takes_trainer_options and not any(by_user.values())):
            return None, ""
        for name, setting in by_user.items():
            value = truth(setting[0]) if setting is not None else self._of_script(name)
            if value is None:  # only the run will tell
                return None, ""
            if value is True:
                return name, "the script decides it"
        return "fp32", "the script's TrainingArguments name neither bf16 nor fp16"

    def _of_script(self, name: str) -> object:
        """What the script's source or its arguments class has; None: computed, or not known."""
        if name in self._tool.defaults:
            return self._tool.defaults[name]
        if name in self.defaults:
            return self.facts.field_defaults.get(name, self.defaults[name])
        if self.facts.parses_training_arguments:
            default = self.facts.field_defaults.get(name, TRAINERS_OWN.get(name))
            return None if self._has_other_class else default
        is_known = self.facts.spells_out_arguments and not self.facts.hides_arguments
        default = TRAINERS_OWN.get(name) if is_known and not self._has_other_class else None
        value = self.facts.batch_arguments.get(name, default)
        bound = bound_value(self.facts.code_settings, name) if value is None and name in _NUMBERS else None
        return value if bound is None else bound.value

    @property
    def _has_other_class(self) -> bool:
        """Its arguments class is not Transformers' own, and could not be read."""
        return any(not name.startswith("transformers.") for name in self.facts.argument_classes)

    def _fixed_checkpointing(self) -> str | None:
        if "{checkpointing}" in " ".join(self.user_arguments):
            return None
        by_user = self._user_value(CHECKPOINTING)
        if by_user is not None:
            return "none" if truth(by_user[0]) is False else "full"
        if self._takes_trainer_options or self._declared(CHECKPOINTING) in self.facts.flags:
            return None
        literal = self.facts.batch_arguments.get("gradient_checkpointing")
        if "selective_checkpointing" in self.facts.mentions:
            return "selective"
        return "full" if literal is True or self.facts.mentions & _CHECKPOINTING_CALLS else "none"

    @property
    def own_deepspeed_file(self) -> tuple[str, str] | None:
        """The DeepSpeed file that the script takes by itself in place of a plan's, and where it is named."""
        name = {"trainer": "deepspeed", "raw": "deepspeed_config"}.get(self.style)
        value, where = (self.decided(name) if name is not None else None) or (None, "")
        return (value, where) if isinstance(value, str) and value.lower() not in (*NO, "true") else None

    @property
    def runs_without_deepspeed(self) -> bool:
        """Whether it trains by itself where nobody gives it a DeepSpeed configuration."""
        return self.style in ("trainer", "accelerate") and "DeepSpeedPlugin" not in self.facts.mentions

    @property
    def never_checkpoints(self) -> bool:
        """Whether nothing in the script or its arguments looks like activation checkpointing."""
        of_pipeline = "activation_checkpoint_interval" in self.facts.keywords
        return not self.facts.unreadable and not of_pipeline and self._fixed_checkpointing() == "none"

    def _fixed_number(self, name: str, placeholder: str) -> int | None:
        """A number that the user's arguments or the script's source fix; None: it can be given, or is
        not known (then the run tells)."""
        if placeholder in " ".join(self.user_arguments):
            return None
        by_user = self._user_value(self._names(name))
        if by_user is not None:
            return number(by_user[0])
        if self.style != "trainer" or self._declared(self._names(name)) is not None:
            return None
        return number(self._of_script(name))

    # ---------------------------------------------------------------- what is added, what contradicts

    def arguments(self, strategy: Strategy) -> tuple[str, ...]:
        """The user's arguments, filled in, and the script's options that this strategy needs."""
        settings = strategy.settings
        full = strategy.checkpointing == "full"
        values = (str(settings.micro_batch), str(settings.gradient_accumulation), "true" if full else "false")
        filled = list(self.user_arguments)
        for placeholder, value in zip(PLACEHOLDERS, values, strict=True):
            filled = [argument.replace(placeholder, value) for argument in filled]
        added = self.additions(PlannedValues.of(strategy))
        cut = filled.index("--") if "--" in filled else len(filled)
        return (*filled[:cut], *added, *filled[cut:])

    def additions(self, planned: PlannedValues) -> tuple[str, ...]:
        """The options that tell the script what the plan decided, where the user gave nothing."""
        added: list[str] = []
        if self._takes_trainer_options:
            values = planned.trainer_values()
            for half, other in (("bf16", "fp16"), ("fp16", "bf16")):  # TrainingArguments refuse both
                if (given := self._user_value((other,))) is not None and truth(given[0]):
                    values.pop(half, None)
            for name, value in values.items():
                names = SPELLINGS.get(name, (name,))
                is_open = self._user_value(names) is None and not self._said(name)
                if is_open and self._of_script(name) != value:
                    added += self._spelt(name, value)
            if planned.on_cpu and planned.precision == "bf16" and self._user_value(("use_cpu",)) is None:
                added += self._spelt("use_cpu", True)  # or TrainingArguments refuse bf16 without a GPU
            return tuple(added)
        for name, value in (
            (MICRO_BATCH[0], planned.micro_batch),
            (ACCUMULATION[0], planned.gradient_accumulation),
        ):
            option = self._declared(self._names(name))
            if option is not None and not self._said(name) and self._user_value(self._names(name)) is None:
                added += [option, str(value)]
        return (*added, *self._checkpointing_flag(planned.checkpointing == "full"))

    def _names(self, name: str) -> tuple[str, ...]:
        """How the option may be called; a script may pass on one of its own, ``--batch-size``."""
        own = own_option(self.facts.code_settings, name) if name in _NUMBERS else None
        names = SPELLINGS.get(name, (name,))
        return (*names, own.option.removeprefix("--")) if own is not None and own.option else names

    def _is_added(self, name: str) -> bool:
        own = name in _NUMBERS and self._declared(self._names(name)) is not None
        return self._takes_trainer_options or own

    def _spelt(self, name: str, value: object) -> list[str]:
        if not self._is_file_alone:
            return [f"--{name}", str(value)]
        if name in self._tool.negated:
            name, value = self._tool.negated[name], not value
        return [f"{name}={value}"]

    def _checkpointing_flag(self, full: bool) -> list[str]:
        option = self._declared(CHECKPOINTING)
        if option is None or option not in self.facts.flags or self._said("gradient_checkpointing"):
            return []
        return [option] if full and self._user_value(CHECKPOINTING) is None else []

    def words_for_checkpointing(self) -> tuple[str, ...]:
        """What turns it on if added to the arguments; empty: no option is known, or they say it already."""
        if self._user_value(CHECKPOINTING) is not None or self._said("gradient_checkpointing"):
            return ()
        if self._takes_trainer_options:
            return tuple(self._spelt("gradient_checkpointing", True))
        return tuple(self._checkpointing_flag(True))

    def _said(self, name: str) -> bool:
        """Whether a placeholder in the user's arguments says it already."""
        stands_for = {
            "per_device_train_batch_size": "{micro_batch}",
            "gradient_accumulation_steps": "{gradient_accumulation}",
            "gradient_checkpointing": "{checkpointing}",
        }
        return name in stands_for and stands_for[name] in " ".join(self.user_arguments)

    def conflicts(self, planned: PlannedValues, *, added: bool) -> list[str]:
        """Where the script would do something else than the plan: both values, one sentence each.

        Args:
            planned: the plan's values.
            added: whether :meth:`additions` reach the script.
        """
        planned_values = planned.trainer_values()
        if self.style != "trainer":  # the others' precision is DeepSpeed's matter
            planned_values = {name: planned_values[name] for name in SPELLINGS if name in planned_values}
        result = []
        for name, value in planned_values.items():
            if name in _ONLY_TOLD or self._said(name):
                continue
            by_user = self._user_value(self._names(name))
            if by_user is not None:
                actual, location = by_user
            elif (added and self._is_added(name)) or self.style != "trainer":
                continue
            else:
                actual, location = self._of_script(name), self._where(name)
            if differs(actual, value):
                planned_value = (
                    f"trains in {planned.precision}" if name in ("bf16", "fp16") else f"has {name} {value}"
                )
                result.append(f"{location}, but the plan {planned_value}")
        return result

    def _where(self, name: str) -> str:
        value = self._of_script(name)
        if name in self.facts.batch_arguments or name in self.facts.field_defaults:
            return f"{self.facts.path} sets {name} {value}"
        if self._is_file_alone and self.file is not None:
            return f"{self.file.path} has no {name}, whose default is {value}"
        return f"{name} is {value} by default"
