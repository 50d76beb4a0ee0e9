"""A plan for somebody's script: its rehearsals as a value for the planner, and the best plans rehearsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.planner.memory_source import Say
    from zerokit.planner.plan_result import PlanResult
    from zerokit.script.entry_points import Target

__all__ = ["DEFAULT_SECONDS", "plan_script"]

DEFAULT_SECONDS = 600.0


def plan_script(
    target: Target,
    options: Mapping[str, Any],
    *,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    top: int = 5,
    seconds: float = DEFAULT_SECONDS,
    unconfined: bool = False,
    no_cache: bool = False,
    say: Say | None = None,
) -> PlanResult:
    """Choose the fastest strategy for a script, and rehearse the best before it is said to fit.

    Args:
        options: of a plan; where they name no model, the script's is taken from its first rehearsal.
        seconds: after so long it is rehearsed only until one plan is that fits.
        unconfined: rehearse it without namespaces where the kernel gives none.
        no_cache: rehearse it though nothing has changed since an earlier rehearsal.
        say: hears of each rehearsal.

    Raises:
        InputError: an argument that cannot be, or contradicts the script.
        NothingFits: names the nearest changes that would fit.
    """
    from dataclasses import replace

    from zerokit.domain.planning_again import TOLD_BY_SCRIPT
    from zerokit.errors import InputError
    from zerokit.planner.memory_source import silent
    from zerokit.planner.plan_result import check_folder
    from zerokit.planner.recipes import merged, named_in_refusals
    from zerokit.planner.request import refuse_other_engines
    from zerokit.rehearsal.zygote import Zygote
    from zerokit.script_planner.planning import ScriptPlanning
    from zerokit.search.engine import DIVIDING

    if out is not None:
        check_folder(Path(out))
    requested = merged(recipe, options, overrides, for_script=True) if recipe is not None else options
    refuse_other_engines(requested, DIVIDING, "with a script one engine is planned: deepspeed or fsdp2")
    if requested.get("engine") == "fsdp2" and requested.get("tp") not in (None, 1, "1"):
        raise InputError(
            f"⟨tp⟩ {requested['tp']}: under FSDP2 a plan's files do not reach a script that Transformers "
            "divides; leave it out, or plan without the script and name its ⟨model⟩"
        )
    told = {f"{name.replace('-', '_')}=" for name in TOLD_BY_SCRIPT}
    left_to_script = tuple(text for text in overrides if text.strip().replace("-", "_") in told)
    with named_in_refusals(options, requested), Zygote(target) as zygote:
        result = ScriptPlanning(
            target=target, options=requested, seconds=seconds, unconfined=unconfined, no_cache=no_cache,
            say=say or silent, left_to_script=left_to_script, zygote=zygote,
        ).plan(top)  # fmt: skip
    return result if out is None else replace(result, files=result.write(out, say))
