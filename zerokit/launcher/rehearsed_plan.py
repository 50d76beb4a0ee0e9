"""Whether a plan was rehearsed with the very command that is launched, and what to say where it was not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from zerokit.domain import planning_again
from zerokit.emit.plan_file import FILE_NAME, PlanFile
from zerokit.launcher.secrets import Secrets
from zerokit.launcher.unlike_arguments import fewer_steps, joined, unlike_arguments
from zerokit.script.entry_points import Target
from zerokit.temporary import is_temporary


def content(plan: PlanFile, target: Target) -> dict[str, Any]:
    """The plan's ``request``, ``chosen`` and ``cluster``; ``chosen.rehearsed`` only where it was this command
    that was rehearsed, for as many steps or more, else ``chosen.rehearsed_with``: the script that was, and in
    what arguments differ.
    ``script``: what stands after ``--`` in a plan with it; absent where none is made with one.
    ``folder``: the plan's, if it lasts."""
    chosen = plan.chosen
    other = _rehearsed_otherwise(plan, target)
    if other is not None:
        chosen = {name: value for name, value in chosen.items() if name != "rehearsed"}
        chosen["rehearsed_with"] = other
    found: dict[str, Any] = {"request": plan.request, "chosen": chosen, "cluster": plan.cluster}
    if not is_temporary(plan.folder):
        found["folder"] = str(plan.folder)
    return {**found, "script": script_words(target)} if is_rehearsable(plan) else found


def note(
    plan: PlanFile | None,
    target: Target,
    style: str,
    run_dir: Path | None,
    unlike: Sequence[str] = (),
    options: Sequence[str] = (),
    is_refused: bool = False,
) -> str | None:
    """What its user should know before a launch; None where there is no plan, or it was
    rehearsed with this very command.

    Args:
        style: how the script takes its configuration; ``none``: no plan reaches it, so none is rehearsed.
        run_dir: where a copy of the plan will lie; None: nowhere, as for a dry run.
        unlike: options of the plan that the script decides otherwise: a plan with the script leaves them to
            it.
        options: words of others to plan with.
        is_refused: no plan is made with the script and these arguments.
    """
    if plan is None or is_refused:
        return None
    if (steps := _fewer_steps(plan, target)) is not None:
        return f"the command takes fewer optimizer steps than the plan's rehearsal did ({steps})"
    if not is_named(plan, target, style, is_refused):
        return None
    other = _rehearsed_otherwise(plan, target)
    command = command_with_script(plan, target, run_dir, unlike, options)
    left = planning_again.what_is_left(command)
    if other is not None:
        return (
            f"warning: the plan was rehearsed with another command ({other}), so its prediction is of that "
            f"run; to plan with this command{left}: {command}"
        )
    return (
        "the plan was not rehearsed with this script: its figures are of a bare training loop; to plan with "
        f"the script, which rehearses it for some minutes{left}: {command}"
    )


def is_named(plan: PlanFile, target: Target, style: str, is_refused: bool) -> bool:
    """Whether :func:`note` names the command that plans with the script, with the same arguments."""
    if is_refused:
        return False
    if "rehearsed" in plan.chosen:
        return _rehearsed_otherwise(plan, target) is not None
    return bool(plan.chosen.get("estimate")) and style != "none" and is_rehearsable(plan)


def _rehearsed_otherwise(plan: PlanFile, target: Target) -> str | None:
    """The script that the plan was rehearsed with, and in what its arguments differ, where this is another
    command: other secrets, another order, other places to write to and fewer steps make none."""
    rehearsed = plan.chosen.get("rehearsed")
    if not isinstance(rehearsed, dict) or rehearsed.get("command") == target.digest:
        return None
    arguments = _rehearsed_arguments(plan, target)
    name = str(rehearsed.get("script"))
    if arguments is None:
        return name
    given = _masked_arguments(target)
    unlike = () if fewer_steps(arguments, given) is not None else unlike_arguments(arguments, given)
    return f"{name}: {joined(unlike)}" if unlike else None


def _fewer_steps(plan: PlanFile, target: Target) -> str | None:
    """The option by which this command takes fewer steps than the plan's rehearsal did, and is the same
    otherwise; None: it is not so. A plan with it would have no step time."""
    arguments = _rehearsed_arguments(plan, target)
    return None if arguments is None else fewer_steps(arguments, _masked_arguments(target))


def _rehearsed_arguments(plan: PlanFile, target: Target) -> tuple[str, ...] | None:
    """Those that this script was rehearsed with; None: another was, or none, or they are not known."""
    rehearsed = plan.chosen.get("rehearsed")
    name = Path(target.name).name if target.script is not None else target.name
    is_same = isinstance(rehearsed, dict) and str(rehearsed.get("script")) == name
    return plan.rehearsed_arguments if is_same else None


def _masked_arguments(target: Target) -> list[str]:
    return Secrets(os.environ, target.arguments).argv(target.arguments)


def command_with_script(
    plan: PlanFile,
    target: Target,
    run_dir: Path | None = None,
    unlike: Collection[str] = (),
    options: Sequence[str] = (),
) -> str:
    """What its user types to plan the same with the script; secrets among its arguments are masked.

    Args:
        run_dir: where a copy of the plan will lie; None: nowhere.
        unlike: options of the plan that are left to the script.
        options: words of others to plan with.
    """
    folder = None if is_temporary(plan.folder) else plan.folder
    recipe = plan.path if folder is not None else run_dir / FILE_NAME if run_dir is not None else None
    asked = {name: plan.request[name] for name in plan.request if name not in plan.decided_by_script}
    left_out = asked.keys() & {*unlike, *planning_again.TOLD_BY_SCRIPT}
    if "params" in asked:  # a size stands in for the script's model; a recipe without its model has no size
        left_out |= {"params" if recipe is None else "model"}
    words = planning_again.command_words(asked, recipe=recipe, out=folder, options=options, without=left_out)
    return shlex.join([*words, "--", *script_words(target)])


def script_words(target: Target) -> list[str]:
    """The script with its arguments, secrets masked."""
    script = [target.script] if target.script is not None else ["-m", str(target.module)]
    return Secrets(os.environ, target.arguments).argv([*script, *target.arguments])


def is_rehearsable(plan: PlanFile) -> bool:
    """Whether a plan of this kind is made with a script at all: for GPUs, and to train."""
    return plan.cluster.get("gpu") != "cpu" and "inference" not in plan.request
