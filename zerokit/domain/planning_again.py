"""What to type to plan for a job that runs otherwise than its plan."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.commands import option_words
from zerokit.domain.planned import Chosen, degrees, global_batch, world_size
from zerokit.domain.settings import SETTINGS

Facts = Mapping[str, Any]
TOLD_BY_SCRIPT = tuple(row.option for row in SETTINGS.values() if row.told_by_script)
"""Options that a plan with a script takes from its rehearsal, and refuses where others are given."""
_EMPTIED = re.compile(r"[a-z_]+=")
_OPTION = re.compile(r"--[a-z][a-z-]*")


def options_for(chosen: Chosen, request: Facts, ran: Mapping[str, str]) -> tuple[str, ...]:
    """Options of ``zerokit plan --recipe plan.yaml`` that plan for what ran, as words of a command.

    The global batch stays the plan's where the GPUs of the request can divide it; else it is the nearest one
    that they can, and is named.

    Args:
        chosen: the plan's choice. request: what it was planned from, by option without dashes in front.
        ran: the options that another value ran of, with that value.
    """
    words = [word for option, value in ran.items() for word in (f"--{option}", value)]
    batch = global_batch(chosen)
    if not batch or not {"micro-batch", "gradient-accumulation"} & ran.keys():
        return tuple(words)
    again = _nearest_batch(batch, chosen, {**request, **ran})
    if again != batch or not request.get("global-batch"):
        words += ["--global-batch", str(again)]
    return tuple(words)


def options_with_script(
    chosen: Chosen, request: Facts, ran: Mapping[str, str], script: Sequence[str]
) -> tuple[str, ...]:
    """Options as :func:`options_for` has them, for a plan with the script: what it decides is taken out of
    the recipe. ``ran``: may hold options that no word can say, as the model. ``script``: what stands after
    ``--``."""
    options = global_batch_for(chosen, request, ran)
    left_out = request.keys() & {*ran, *TOLD_BY_SCRIPT}
    left_out |= {"model"} if "params" in request else set()  # takes the size out, which stands in for it
    return (*options, *_emptied(left_out), "--", *script)


def global_batch_for(chosen: Chosen, request: Facts, ran: Mapping[str, str]) -> tuple[str, ...]:
    """The words of :func:`options_for` that name the global batch, where the script decides the others."""
    words = options_for(chosen, request, ran)
    return words[words.index("--global-batch") :] if "--global-batch" in words else ()


def command_words(
    request: Mapping[str, Any],
    *,
    recipe: Path | None,
    out: Path | None = None,
    options: Sequence[str] = (),
    without: Collection[str] = (),
) -> list[str]:
    """``zerokit plan`` with the request of a plan, as words.

    Args:
        request: of the plan, by option without dashes in front.
        recipe: the ``plan.yaml`` that holds it; None: none that lasts, so its options are written out.
        out: the folder to plan into; None: the default one.
        options: words that go before the request's.
        without: options of the request that are left out.
    """
    into = [] if out is None else ["--out", str(out)]
    if recipe is not None:
        return ["zerokit", "plan", "--recipe", str(recipe), *options, *into, *_emptied(without)]
    replaced = {word[2:] for word in options if _OPTION.fullmatch(word)}
    kept = {name: value for name, value in request.items() if name not in replaced | set(without)}
    return ["zerokit", "plan", *option_words(kept), *options, *into]


def what_is_left(command: str) -> str:
    """What the words without a value (``model= seq_len=``) of such a command do, in brackets after a space;
    empty where it has none."""
    words = shlex.split(command)
    options = words[: words.index("--")] if "--" in words else words
    emptied = [word for word in options if _EMPTIED.fullmatch(word)]
    if not emptied:
        return ""
    named = (
        f"{', '.join(emptied[:-1])} and {emptied[-1]} leave those"
        if emptied[1:]
        else f"{emptied[0]} leaves that"
    )
    return f" ({named} to the script)"


def _emptied(names: Collection[str]) -> list[str]:
    """What takes them out of a recipe."""
    return [f"{name.replace('-', '_')}=" for name in sorted(names)]


def _nearest_batch(batch: int, chosen: Chosen, options: Facts) -> int:
    """Batch nearest to the one asked for, of a search over all GPUs: a plan for fewer of them is only made
    where all of them have a plan."""
    sharing = world_size(chosen) // degrees(chosen)["data_parallel"]
    gpus = _count(options.get("gpus")) or world_size(chosen)
    micro, steps = _count(options.get("micro-batch")), _count(options.get("gradient-accumulation"))
    least = (micro or 1) * (steps or 1) * max(1, gpus // sharing)
    if micro and steps:
        return least
    return max(1, (2 * batch + least - 1) // (2 * least)) * least  # the smaller of two as near


def _count(value: Any) -> int:
    """A whole number however it was written; 0: none."""
    text = str(value).replace(",", "").replace("_", "")
    return int(text) if text.isdecimal() else 0
