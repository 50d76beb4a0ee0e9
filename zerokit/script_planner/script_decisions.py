"""What a script's rehearsals show that it decides, whatever a plan has; held to what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerokit.domain.settings import SETTINGS, unlike_script
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.planner.hardware import integer
from zerokit.planner.memory_source import Say
from zerokit.rehearsal.result import Rehearsal
from zerokit.rehearsal.trained_model import (
    contradiction,
    fed_tokens,
    name_of,
    options_of,
    refuse_unlike_method,
)
from zerokit.units import counted

_SAME_LENGTH = 0.01
_OF_TRAINERS = ("micro_batch", "gradient_accumulation", "precision")

Fed = Mapping[int, tuple[int | None, int | None]]
"""Rows and columns of what reached the engine, by the micro-batch of the plan."""


class CannotRehearse(Exception):
    """Why there is no rehearsal to plan with; in a sentence. ``is_of_script``: a change of the script or its
    arguments would allow one. ``to_fix``: the error of the script or its arguments that it is, which ends a
    run too; None: it is none."""

    def __init__(self, why: str, *, is_of_script: bool = True, to_fix: str | None = None) -> None:
        super().__init__(why)
        self.is_of_script = is_of_script
        self.to_fix = to_fix


@dataclass(slots=True, kw_only=True)
class ScriptDecisions:
    """What one script decides, as options of ``plan``.

    Attributes:
        script: its name. style: how it takes its configuration.
        asked: the options that its user gave.
        kept: those that it decides, which go before ``asked``.
        adapters_option: its option that has it train adapters; empty: none is known.
        told: options that its own arguments say, as a plan has them.
        notes: for people, in sentences.
        model_name: as the script has it; empty: not known.
    """

    script: str
    style: str
    asked: Mapping[str, Any]
    say: Say
    adapters_option: str = ""
    told: frozenset[str] = frozenset()
    kept: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    model_name: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """What is planned for."""
        return {**self.asked, **self.kept}

    @property
    def names_model(self) -> bool:
        """Whether the user named the model."""
        return bool(self.asked.get("model") or self.asked.get("params"))

    @property
    def leave_model_out(self) -> str:
        """What to do where another model was named than the script's."""
        name = "model" if self.asked.get("model") else "params"
        return f"leave zerokit's ⟨{name}⟩ out: the rehearsal determines the script's model"

    def is_asked(self, name: str) -> bool:
        """Whether the user gave a value of an option."""
        return self.asked.get(name) not in (None, "auto")

    def take_own(self, done: Rehearsal, planned: Strategy) -> str:
        """Keep what turned out to be the script's own and not as planned: arguments of a Trainer, as computed
        ones can, and what its code asks Accelerate for.

        Returns:
            Them, in words; empty: there are none.

        Raises:
            InputError: another value was asked for.
            CannotRehearse: it follows what it is told, and is never that.
        """
        engine = done.engine or {}
        trainers = _OF_TRAINERS if self.style == "trainer" else ()
        found = {
            name: (engine.get(name), getattr(planned.settings, name), "the script trains with it")
            for name in trainers
        }
        for one in done.asked:
            name = SETTINGS[one["setting"]].argument
            where = f"{one['location']}: {one['call']}"
            found[name] = one["code"], one["engine"], where
            if one["code"] == one["engine"] and not self.is_asked(name) and name not in self.told:
                self.kept[name] = str(one["code"])
                self.notes.append(f"⟨{name}⟩ {one['code']}: {where}")
        words = []
        for name, (own, value, where) in found.items():
            if own in (None, value):
                continue
            if name in self.kept:
                raise CannotRehearse(f"told to train with {name.replace('_', '-')} {value}, it takes {own}")
            if self.is_asked(name):
                raise unlike_script(name, self.asked[name], f"the script has {own} ({where})", "change it")
            self.kept[name] = str(own)
            self.notes.append(f"⟨{name}⟩ {own}: {where}, whatever the plan had")
            words.append(f"{name.replace('_', '-')} {own}")
        if words:
            self.say(f"{self.script} trains with {', '.join(words)}: planned for that")
        return ", ".join(words)

    def take_model(self, done: Rehearsal, planned: Strategy) -> bool:
        """Keep the model, its method and its length, where nobody gave them; whether there is something.
        Raises InputError: others were asked for, or the script's model is not known and none was named."""
        self._refuse_unlike_length(done, planned)
        refuse_unlike_method(done, self.asked, self.adapters_option)
        found, notes = options_of(done, self.asked, planned.sequence_parallel)
        self.kept |= found
        self.notes += notes
        self.model_name = name_of(done)
        return bool(found)

    def _refuse_unlike_length(self, done: Rehearsal, planned: Strategy) -> None:
        """Stop where other sequences were asked for than the script feeds: no plan changes its data."""
        engine = done.engine or {}
        tokens = fed_tokens(engine, planned.sequence_parallel)
        asked = integer(self.asked, "seq_len")
        if asked is None or tokens is None or not (done.model or {}).get("config"):
            return
        if engine.get("batch_rows") == 1 and planned.settings.micro_batch > 1:
            return  # sequences laid end to end: the length of none is known
        if abs(tokens - asked) > _SAME_LENGTH * asked:
            why = f"the longest sequences that the script feeds its model have {tokens} tokens"
            raise unlike_script("seq_len", asked, why, f"change the script's data to {asked}")

    def refuse_unlike_model(self, done: Rehearsal, parameters: int, method: str) -> None:
        """Stop where the model that was named is not the script's. Raises InputError: says how many
        parameters both have."""
        why = contradiction(done, parameters, method) if self.names_model else None
        if why is not None:
            raise InputError(f"{why}; {self.leave_model_out}")

    # ---------------------------------------------------------------- the batch

    def may_ignore_batch(self, fed: Fed) -> bool:
        """Whether what was fed at the one batch size that was tried may be the script's own choice."""
        if self.style == "trainer" or len(fed) != 1:  # whose arguments are its batch
            return False
        ((micro, (rows, _)),) = fed.items()
        return rows not in (None, micro)

    def take_batch(self, fed: Fed) -> int | None:
        """Keep the batch that the script feeds, where that is not the one it was told; None: it is. Raises
        InputError: another one was asked for."""
        rows = next((rows for rows, _ in fed.values()), None)
        if self.style == "trainer" or rows is None or len(set(fed.values())) > 1:
            return None
        if len(fed) == 1:
            (micro,) = fed
            if rows not in (1, micro):  # one row may hold several sequences, end to end
                self.notes.append(
                    f"the script fed its engine {rows} rows at a time, not the {micro} of the micro-batch: "
                    f"memory and time of a step are for {rows}, tokens per second for {micro}"
                )
            return None
        if self.is_asked("micro_batch"):
            why = f"the script feeds its engine {counted(rows, 'row')} at a time, whatever it is told"
            raise unlike_script("micro_batch", self.asked["micro_batch"], why)
        self.kept["micro_batch"] = str(rows)
        self.notes.append(
            f"micro-batch {rows}: the script fed its engine so many rows, whatever the plan had"
        )
        self.say(f"{self.script} feeds its engine {counted(rows, 'row')} at a time: micro-batch {rows}")
        return rows
