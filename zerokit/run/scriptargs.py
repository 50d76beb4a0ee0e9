"""What a plan needs of the script itself: its batch and its checkpointing, given by the script's own options.

DeepSpeed's configuration does not decide everything. A Trainer takes its batch from
``TrainingArguments``, a data loader from the script, and activation checkpointing is turned on by the
script. So that several plans can be tried, the script gets them by options that it declares, or
where the user wrote ``{micro_batch}``, ``{gradient_accumulation}`` or ``{checkpointing}``; what it leaves
no way to change is fixed before planning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zerokit.core.layouts import Pins
from zerokit.core.strategy import Strategy
from zerokit.emit.deepspeed import trainer_arguments
from zerokit.run.style import ScriptFacts

PLACEHOLDERS = ("{micro_batch}", "{gradient_accumulation}", "{checkpointing}")
_MICRO_BATCH = (
    "per_device_train_batch_size",
    "micro_batch_size",
    "micro_batch",
    "train_batch_size_per_device",
)
_ACCUMULATION = ("gradient_accumulation_steps", "gradient_accumulation", "grad_accum_steps")
_CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")
_CHECKPOINTING_CALLS = {"gradient_checkpointing_enable", "checkpoint_sequential", "checkpoint_wrapper",
                        "apply_activation_checkpointing"}  # fmt: skip
_TRAINERS_OWN = {"micro_batch": 8, "gradient_accumulation": 1}  # transformers/training_args.py


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How one script, with the arguments that the user gave, can be told of a plan.

    Attributes:
        style: how it takes its configuration (``zerokit.run.style``).
    """

    facts: ScriptFacts
    style: str
    given: tuple[str, ...]

    @property
    def _parses_training_arguments(self) -> bool:
        """All fields of TrainingArguments are options; a file of arguments in their place is not added to."""
        from_file = len(self.given) == 1 and self.given[0].endswith((".json", ".yaml", ".yml"))
        return self.style == "trainer" and "HfArgumentParser" in self.facts.mentions and not from_file

    def _declared(self, names: tuple[str, ...]) -> str | None:
        """The option of one of these names that the script's own parser has."""
        for name in names:
            for option in (f"--{name}", f"--{name.replace('_', '-')}"):
                if option in self.facts.options:
                    return option
        return f"--{names[0]}" if self._parses_training_arguments else None

    def _value_given(self, names: tuple[str, ...]) -> str | None:
        """What the user's arguments say; ``true`` for a flag without a value."""
        spelt = {f"--{name}" for name in names} | {f"--{name.replace('_', '-')}" for name in names}
        for index, argument in enumerate(self.given):
            option, equals, value = argument.partition("=")
            if option not in spelt:
                continue
            if not equals:
                following = self.given[index + 1] if index + 1 < len(self.given) else "--"
                value = "true" if following.startswith("--") else following
            return value
        return None

    # ---------------------------------------------------------------- what is fixed

    def pins(self, pins: Pins) -> tuple[Pins, tuple[str, ...]]:
        """``pins`` with what the script decides, and a note for each.

        Accelerate feeds the peers of a tensor parallel group alike, so there that is searched too.
        """
        notes: list[str] = []
        if self.style in ("accelerate", "trainer"):
            pins = replace(pins, search_tensor=True)
        if pins.checkpointing is None and (mode := self._fixed_checkpointing()) is not None:
            pins = replace(pins, checkpointing=mode)
            how = "leaves it off" if mode == "none" else "turns it on"
            notes.append(f"checkpointing {mode}: the script {how}, and has no option for it that is known")
        micro, steps = pins.micro_batch, pins.gradient_accumulation
        if micro is None and (micro := self._fixed_number("micro_batch", _MICRO_BATCH)) is not None:
            notes.append(f"micro-batch {micro}: the script decides it")
        if (
            steps is None
            and (steps := self._fixed_number("gradient_accumulation", _ACCUMULATION)) is not None
        ):
            notes.append(f"accumulation {steps}: the script decides it")
        pins = replace(pins, micro_batch=micro, gradient_accumulation=steps)
        return pins, tuple(notes)

    def precision(self, asked: str) -> tuple[str, tuple[str, ...]]:
        """The precision to plan for, and a note where the script decides it.

        A Trainer trains in what its TrainingArguments say, 32 bits unless they say otherwise.
        """
        if asked != "auto" or self.style != "trainer" or self._parses_training_arguments:
            return asked, ()
        for name in ("bf16", "fp16"):
            value = self.facts.batch_arguments.get(name, False)
            given = self._value_given((name,))
            if given is not None:
                value = given.lower() not in ("false", "0", "no")
            if value is None:  # computed: only the run will tell
                return asked, ()
            if value is True:
                return name, (f"precision {name}: the script decides it",)
        return "fp32", ("precision fp32: the script's TrainingArguments name neither bf16 nor fp16",)

    def _fixed_checkpointing(self) -> str | None:
        if "{checkpointing}" in " ".join(self.given):
            return None
        value = self._value_given(_CHECKPOINTING)
        if value is not None:
            return "none" if value.lower() in ("false", "0", "no", "none") else "full"
        if self._parses_training_arguments or self._declared(_CHECKPOINTING) in self.facts.flags:
            return None
        literal = self.facts.batch_arguments.get("gradient_checkpointing")
        if "selective_checkpointing" in self.facts.mentions:
            return "selective"
        return "full" if literal is True or self.facts.mentions & _CHECKPOINTING_CALLS else "none"

    @property
    def never_checkpoints(self) -> bool:
        """Whether nothing in the script or its arguments looks like activation checkpointing."""
        return self._fixed_checkpointing() == "none"

    def _fixed_number(self, field: str, names: tuple[str, ...]) -> int | None:
        """A number that the user's arguments or the script's source fix; None: it can be given, or is
        not known (then the run tells)."""
        if f"{{{field}}}" in " ".join(self.given):
            return None
        value: Any = self._value_given(names)
        if value is not None:
            return int(value) if value.isdigit() and int(value) > 0 else None
        if self.style != "trainer" or self._declared(names) is not None:
            return None
        value = self.facts.batch_arguments.get(names[0], _TRAINERS_OWN[field])
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    # ---------------------------------------------------------------- what is given

    def arguments(self, strategy: Strategy) -> tuple[str, ...]:
        """The user's arguments, filled in, and the script's options that this strategy needs."""
        settings = strategy.settings
        full = strategy.checkpointing == "full"
        values = (str(settings.micro_batch), str(settings.gradient_accumulation), "true" if full else "false")
        filled = list(self.given)
        for placeholder, value in zip(PLACEHOLDERS, values, strict=True):
            filled = [argument.replace(placeholder, value) for argument in filled]
        added: list[str] = []
        if self._parses_training_arguments:
            pairs = trainer_arguments(strategy)
            for name, value in zip(pairs[::2], pairs[1::2], strict=True):
                if self._value_given((name.removeprefix("--"),)) is None and not self._said(name):
                    added += [name, value]
        else:
            for names, placeholder, value in zip(
                (_MICRO_BATCH, _ACCUMULATION), PLACEHOLDERS, values, strict=False
            ):
                option = self._declared(names)
                if option is not None and not self._said(placeholder) and self._value_given(names) is None:
                    added += [option, value]
            added += self._checkpointing_arguments(full)
        cut = filled.index("--") if "--" in filled else len(filled)
        return (*filled[:cut], *added, *filled[cut:])

    def _checkpointing_arguments(self, full: bool) -> list[str]:
        option = self._declared(_CHECKPOINTING)
        if option not in self.facts.flags or self._said("{checkpointing}"):
            return []
        return [option] if full and self._value_given(_CHECKPOINTING) is None else []

    def _said(self, text: str) -> bool:
        """Whether the user's arguments already say it: a placeholder, or the trainer option that has one."""
        stands_for = {
            "--per_device_train_batch_size": "{micro_batch}",
            "--gradient_accumulation_steps": "{gradient_accumulation}",
            "--gradient_checkpointing": "{checkpointing}",
        }
        return stands_for.get(text, text) in " ".join(self.given)
