"""Runs that go on, and end well as processes, but train nothing or wait: what the ranks' own counts say,
and what to say beforehand of a model whose modules a batch may pass by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.verdict.rank_view import RankView, recorded
from zerokit.launcher.verdict.why_hung import unlike_sizes
from zerokit.report.stragglers import find_straggler, why_unknown
from zerokit.report.training import Finding, findings


def training_findings(logs: Mapping[int, RankLog], *, is_accepted: bool = False) -> list[Finding]:
    """What makes the training of these ranks doubtful, and the rank that is waited for.

    Args:
        is_accepted: values of the code that the run does not have were accepted.
    """
    ticks = newest(logs)
    straggler = find_straggler(ticks)
    unlike, unknown = unlike_collective(logs), why_unknown(ticks)
    found = [*_no_step(logs), *findings(ticks, is_accepted=is_accepted)]
    return [
        *([Finding(id="unlike-collective", text=unlike)] if unlike else []),
        *found,
        *([Finding(id="straggler", text=str(straggler))] if straggler is not None else []),
        *([Finding(id="waits-unmeasured", text=unknown)] if unknown else []),
    ]


def _no_step(logs: Mapping[int, RankLog]) -> list[Finding]:
    """A DeepSpeed engine came up, and every rank finished without one of its steps."""
    ends = [log.last("end") for log in logs.values()]
    if not ends or not all(end is not None and end.get("state") == "finished" for end in ends):
        return []
    if any(end.get("steps") for end in ends if end) or not all(log.last("engine") for log in logs.values()):
        return []
    micro_steps = max(int(end.get("micro_steps") or 0) for end in ends if end)
    ran = f"{micro_steps} micro-batch{'es' if micro_steps != 1 else ''} of a rank ran"
    text = (
        f"no training step was seen: {ran}, and no optimizer step; give it more data or steps, or a smaller "
        "gradient accumulation"
    )
    return [Finding(id="no-step", text=text, is_certain=micro_steps > 0)]


def unlike_collective(logs: Mapping[int, RankLog]) -> str | None:
    """A collective that ended although the ranks' tensors were not of one size."""
    records = {rank: log.last("calls") for rank, log in sorted(logs.items())}
    return unlike_sizes(
        [recorded(RankView(rank=rank), record) for rank, record in records.items() if record is not None]
    )


def newest(logs: Mapping[int, RankLog]) -> dict[int, Mapping[str, Any]]:
    """The last account of each rank."""
    return {rank: log.last("end", "tick") or {} for rank, log in sorted(logs.items())}


def warnings_of(engine: Mapping[str, Any]) -> list[str]:
    """One sentence for each kind of module; ``engine``: the ``engine`` line of a rank's file."""
    modules = engine.get("skippable")
    if engine.get("zero_stage") != 3 or not isinstance(modules, dict):
        return []
    warnings = []
    if experts := _names(modules.get("experts")):
        warnings.append(
            f"mixture of experts under ZeRO-3 without a leaf module ({experts}): a rank none of whose tokens "
            "go to an expert does not gather its weights, and the others hang; call deepspeed.utils."
            "set_z3_leaf_modules(model, [the class that holds the experts]) before the engine is made"
        )
    if towers := _names(modules.get("towers")):
        warnings.append(
            f"{towers} under ZeRO-3 runs only for batches with an image or sound: a rank whose batch has "
            "none does not gather its weights, and the others hang; give every batch one, if only a blank"
        )
    return warnings


def _names(value: object) -> str:
    return ", ".join(str(name) for name in value) if isinstance(value, list) else ""
