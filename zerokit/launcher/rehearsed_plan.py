"""Whether a plan was rehearsed with the very command that is launched, and what to say where it was not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerokit.emit.plan_file import FILE_NAME, PlanFile
from zerokit.launcher.secrets import Secrets
from zerokit.launcher.unlike_arguments import joined, unlike_arguments
from zerokit.script.entry_points import Target
from zerokit.temporary import is_temporary


def content(plan: PlanFile, target: Target) -> dict[str, Any]:
    """The plan's ``request``, ``chosen`` and ``cluster``; ``chosen.rehearsed`` only where it was this command
    that was rehearsed, else ``chosen.rehearsed_with``: the script that was, and in what arguments differ."""
    chosen = plan.chosen
    other = _rehearsed_otherwise(plan, target)
    if other is not None:
        chosen = {name: value for name, value in chosen.items() if name != "rehearsed"}
        chosen["rehearsed_with"] = other
    return {"request": plan.request, "chosen": chosen, "cluster": plan.cluster}


def note(
    plan: PlanFile | None, target: Target, style: str, run_dir: Path | None, unlike: Sequence[str] = ()
) -> str | None:
    """What its user should know before a launch; None where there is no plan, or it was
    rehearsed with this very command.

    Args:
        style: how the script takes its configuration; ``none``: no plan reaches it, so none is rehearsed.
        run_dir: where a copy of the plan will lie; None: nowhere, as for a dry run.
        unlike: options of the plan that the script decides otherwise: a plan with the script leaves them to
            it.
    """
    if plan is None:
        return None
    other = _rehearsed_otherwise(plan, target)
    if other is not None:
        return (
            f"warning: the plan was rehearsed with another command ({other}), so its prediction is of that "
            f"run; to plan with this command: {_command(plan, target, run_dir, unlike)}"
        )
    is_rehearsable = style != "none" and plan.cluster.get("gpu") != "cpu" and "inference" not in plan.request
    if "rehearsed" in plan.chosen or not plan.chosen.get("estimate") or not is_rehearsable:
        return None
    return (
        "the plan was not rehearsed with this script: its figures are of a bare training loop; to plan with "
        f"the script, which rehearses it for some minutes: {_command(plan, target, run_dir, unlike)}"
    )


def _rehearsed_otherwise(plan: PlanFile, target: Target) -> str | None:
    """The script that the plan was rehearsed with, and in what its arguments differ, where this is another
    command: other secrets, another order and other places to write to make none."""
    rehearsed = plan.chosen.get("rehearsed")
    if not isinstance(rehearsed, dict) or rehearsed.get("command") == target.digest:
        return None
    name, arguments = str(rehearsed.get("script")), plan.rehearsed_arguments
    own_name = Path(target.name).name if target.script is not None else target.name
    if arguments is None or name != own_name:
        return name
    unlike = unlike_arguments(arguments, Secrets(os.environ, target.arguments).argv(target.arguments))
    return f"{name}: {joined(unlike)}" if unlike else None


def _command(plan: PlanFile, target: Target, run_dir: Path | None, unlike: Sequence[str]) -> str:
    """What the user types to plan the same with the script; secrets among its arguments are masked."""
    script = [target.script] if target.script is not None else ["-m", str(target.module)]
    own_words = Secrets(os.environ, target.arguments).argv([*script, *target.arguments])
    words = ["zerokit", "plan"]
    if not is_temporary(plan.folder):
        words += ["--recipe", str(plan.path), "--out", str(plan.folder)]
    elif run_dir is not None:
        words += ["--recipe", str(run_dir / FILE_NAME)]
    else:
        return f"zerokit plan … -- {shlex.join(own_words)}"
    asked = set(plan.request) - set(plan.decided_by_script)
    left_out = {"model"} if "params" in asked else set()  # a size stands in for the script's model
    left_out |= asked & set(unlike)
    words += [f"{name.replace('-', '_')}=" for name in sorted(left_out)]
    return shlex.join([*words, "--", *own_words])
