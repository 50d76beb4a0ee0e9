"""Whether a plan was rehearsed with the very command that is launched, in what they differ that memory or
step time may depend on, and what to say where it was not.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zerokit.domain import planning_again
from zerokit.domain.script_profile import by_option
from zerokit.emit.plan_file import FILE_NAME, PlanFile
from zerokit.launcher.secrets import Secrets
from zerokit.notes import warning
from zerokit.script.arguments import ACCUMULATION, CHECKPOINTING, MICRO_BATCH
from zerokit.script.entry_points import Target
from zerokit.temporary import is_temporary

_MOST_NAMED = 4
OUTPUTS = frozenset(
    ("output_dir", "output_path", "output_folder", "output", "out_dir", "out", "save_dir", "save_path",
     "save_folder", "logging_dir", "log_dir", "log_path", "run_name")
)  # fmt: skip
"""What scripts call where they write to: neither memory nor time depends on it."""
_VALUES_ALONE = frozenset(
    ("learning_rate", "lr", "weight_decay", "warmup_steps", "warmup_ratio", "lr_scheduler_type",
     "adam_beta1", "adam_beta2", "adam_epsilon", "logging_steps", "logging_strategy", "logging_first_step",
     "log_level", "disable_tqdm", "report_to", "seed", "data_seed", "num_train_epochs", "num_epochs",
     "epochs")
)  # fmt: skip
"""What Transformers and scripts like its own call figures that change numbers, not what is allocated."""
_PLANNED = frozenset(name for one in (MICRO_BATCH, ACCUMULATION, CHECKPOINTING) for name in one.in_scripts)
"""What a launch gives a script that is not given it, as its plan has it, or warns of."""
_STEPS = frozenset(("max_steps", "max_train_steps", "num_train_steps", "train_steps", "num_steps", "steps"))
_MOST_STEPS = 5
"""Optimizer steps that a rehearsal runs."""
_ENOUGH_STEPS = 3
"""Of so many, more change nothing that a rehearsal tells: it times a step from the third on."""


def unlike_arguments(rehearsed: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Where the arguments of the command that a plan was rehearsed with differ from those given now, but for
    where they write to, how many steps more they take, and figures that change numbers alone (a learning
    rate): ``--max_length 512, not 1024``."""
    found = []
    for option, before, now in _differing(rehearsed, given):
        if before is None:
            found.append(f"without {_shown(option, now)}")
        elif now is None:
            found.append(f"{_shown(option, before)}, which is not given")
        else:
            found.append(f"{_shown(option, before)}, not {shlex.join(now) or 'without a value'}")
    return tuple(found)


def fewer_steps(rehearsed: Sequence[str], given: Sequence[str]) -> str | None:
    """The option by which the command of now takes fewer optimizer steps than were rehearsed; None: it does
    not, or differs in something else too."""
    differing = list(_differing(rehearsed, given))
    if len(differing) != 1 or _name(differing[0][0]) not in _STEPS:
        return None
    option, before, now = differing[0]
    rehearsed_steps, steps = _steps(before), _steps(now)
    is_fewer = rehearsed_steps is not None and steps is not None and steps < rehearsed_steps
    return _shown(option, now) if is_fewer else None


_Values = tuple[str, ...] | None


def _differing(rehearsed: Sequence[str], given: Sequence[str]) -> Iterator[tuple[str, _Values, _Values]]:
    """Each option that differs and may matter, with its values before and now."""
    before, now = dict(by_option(rehearsed)), dict(by_option(given))
    for option in dict.fromkeys((*before, *now)):
        old, new, name = before.get(option), now.get(option), _name(option)
        is_idle = name in OUTPUTS | _VALUES_ALONE or (name in _PLANNED and new is None)
        if name in _STEPS:
            ran, steps = _steps(old), _steps(new)
            is_idle = ran is not None and steps is not None and steps >= ran >= _ENOUGH_STEPS
        if old != new and not is_idle:
            yield option, old, new


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _steps(words: _Values) -> int | None:
    """How many a rehearsal runs of these, which is all of no limit (-1, or not given); None: no number."""
    (steps,) = ("-1",) if words is None else words if len(words) == 1 else ("",)
    if steps == "-1":
        return _MOST_STEPS
    return min(int(steps), _MOST_STEPS) if steps.isdecimal() else None


def joined(unlike: Sequence[str]) -> str:
    """Join the first few in a sentence."""
    more = len(unlike) - _MOST_NAMED
    return "; ".join((*unlike[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])))


def _shown(option: str, values: tuple[str, ...] | None) -> str:
    return " ".join(filter(None, (option, shlex.join(values or ()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What a script is given from the plan, and what is to be said about it.

    Attributes:
        unlike: options of the plan that the script decides otherwise, without dashes in front.
        words: of options that a plan with the script takes beside the plan's own.
        is_refused: no plan is made with the script and these arguments: it ends at one of them, or they name
            a DeepSpeed file, with which it would train whatever the plan.
        config: the DeepSpeed configuration as the script gets it; None: it is given none.
        accelerate: the file that ``accelerate launch`` is given, of a plan for FSDP2; None: of no such plan.
        held_to: the plan that a run is held to.
    """

    added: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_refused: bool = False
    config: dict[str, Any] | None = None
    accelerate: dict[str, Any] | None = None
    held_to: dict[str, Any] | None = None


NOT_ASKED = Agreement()
"""Of a script that is held to no plan."""


@dataclass(frozen=True)
class PlannedCommand:
    """A plan, and the command that is launched with it."""

    plan: PlanFile
    target: Target

    @property
    def is_rehearsable(self) -> bool:
        """Whether a plan of this kind is made with a script: for GPUs, to train."""
        return self.plan.cluster.get("gpu") != "cpu" and "inference" not in self.plan.request

    @cached_property
    def _arguments(self) -> list[str]:
        return Secrets(os.environ, self.target.arguments).argv(self.target.arguments)

    @cached_property
    def fewer_steps(self) -> str | None:
        """As :func:`fewer_steps`, of the arguments that this script was rehearsed with."""
        rehearsed = self._rehearsed_arguments
        return None if rehearsed is None else fewer_steps(rehearsed, self._arguments)

    @property
    def _rehearsed_arguments(self) -> tuple[str, ...] | None:
        """Arguments that this script was rehearsed with; None: another was, or none, or they are not
        known."""
        rehearsed, target = self.plan.chosen.get("rehearsed") or {}, self.target
        name = Path(target.name).name if target.script is not None else target.name
        return self.plan.rehearsed_arguments if str(rehearsed.get("script")) == name else None

    @cached_property
    def otherwise(self) -> str | None:
        """The script that the plan was rehearsed with, and in what its arguments differ, where this is
        another command: other secrets, another order, other places to write to and fewer steps make none."""
        rehearsed = self.plan.chosen.get("rehearsed")
        if not rehearsed or rehearsed.get("command") == self.target.digest:
            return None
        arguments, name = self._rehearsed_arguments, str(rehearsed.get("script"))
        if arguments is None:
            return name
        unlike = () if self.fewer_steps is not None else unlike_arguments(arguments, self._arguments)
        return f"{name}: {joined(unlike)}" if unlike else None

    @property
    def content(self) -> dict[str, Any]:
        """The plan's ``request``, ``chosen`` and ``cluster``; ``chosen.rehearsed`` only where it was this
        command that was rehearsed, for as many steps or more, else ``chosen.rehearsed_with``: the script that
        was, and in what arguments differ. ``script``: what stands after ``--`` in a plan with it; absent
        where none is made with one. ``folder``: the plan's, if it lasts."""
        plan, chosen = self.plan, self.plan.chosen
        if self.otherwise is not None:
            chosen = {**chosen, "rehearsed_with": self.otherwise}
            chosen.pop("rehearsed", None)
        found: dict[str, Any] = {"request": plan.request, "chosen": chosen, "cluster": plan.cluster}
        if not is_temporary(plan.folder):
            found["folder"] = str(plan.folder)
        return {**found, "script": script_words(self.target)} if self.is_rehearsable else found

    def is_named(self, style: str, is_refused: bool) -> bool:
        """Whether :meth:`note` names the command that plans with the script, with the same arguments."""
        chosen = self.plan.chosen
        if is_refused or "rehearsed" in chosen:
            return not is_refused and self.otherwise is not None
        return bool(chosen.get("estimate")) and style != "none" and self.is_rehearsable

    def note(self, style: str, run_dir: Path | None, agreed: Agreement = NOT_ASKED) -> str | None:
        """What its user should know before a launch; None where it was rehearsed with this very command.

        Args:
            style: how the script takes its configuration; ``none``: no plan reaches it, so none is
                rehearsed.
            run_dir: where a copy of the plan will lie; None: nowhere, as for a dry run.
            agreed: what is known of the script beside the plan.
        """
        steps = None if agreed.is_refused else self.fewer_steps
        if steps is not None:  # a plan with so few would have no step time
            return f"the command takes fewer optimizer steps than the plan's rehearsal did ({steps})"
        if not self.is_named(style, agreed.is_refused):
            return None
        command = self.with_script(run_dir, agreed.unlike, agreed.words)
        left = planning_again.what_is_left(command)
        if self.otherwise is not None:
            text = (
                f"the plan was rehearsed with another command ({self.otherwise}), so its prediction is of "
                f"that run; to plan with this command{left}: {command}"
            )
            return warning("rehearsed-otherwise", text)
        return (
            "the plan was not rehearsed with this script, whose arguments alone were compared with it; to "
            f"plan with the script{left}: {command}"
        )

    def with_script(
        self, run_dir: Path | None = None, unlike: Collection[str] = (), options: Sequence[str] = ()
    ) -> str:
        """What its user types to plan the same with the script, and with ``options``, leaving options of the
        plan that are ``unlike`` to the script; secrets are masked. ``run_dir``: where a copy of the plan will
        lie."""
        plan = self.plan
        asked = {name: plan.request[name] for name in plan.request if name not in plan.decided_by_script}
        left_out = asked.keys() & {*unlike, *planning_again.TOLD_BY_SCRIPT}
        if "params" in asked:  # a size stands in for the script's model; without a recipe it has no size
            is_kept = run_dir is None and is_temporary(plan.folder)
            left_out |= {"params" if is_kept else "model"}
        words = self._command(asked, run_dir, options, left_out)
        return shlex.join([*words, "--", *script_words(self.target)])

    def by_options(self, ran: Mapping[str, str]) -> str:
        """The command that plans with other values of these options, into the same folder if it lasts."""
        plan = self.plan
        options = planning_again.options_for(plan.chosen, plan.request, ran)
        return shlex.join(self._command(plan.request, None, options))

    def _command(
        self, asked: Mapping[str, Any], run_dir: Path | None, options: Sequence[str],
        without: Collection[str] = (),
    ) -> list[str]:  # fmt: skip
        out: Path | None = self.plan.folder
        recipe: Path | None = self.plan.path
        if is_temporary(self.plan.folder):
            recipe = None if run_dir is None else run_dir / FILE_NAME
            out = None
        return planning_again.command_words(asked, recipe=recipe, out=out, options=options, without=without)


def script_words(target: Target) -> list[str]:
    """The script with its arguments, secrets masked."""
    script = [target.script] if target.script is not None else ["-m", str(target.module)]
    return Secrets(os.environ, target.arguments).argv([*script, *target.arguments])
