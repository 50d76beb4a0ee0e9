"""What makes a DeepSpeed configuration legal: one table, for the planner and for ``zerokit check``.

The planner asks :func:`first_violation` of a strategy (settings and degrees only, microseconds);
``check`` asks :func:`violations` of a file with the raw dictionary, which the rules of scope ``file``
need. Of how a model is divided over GPUs (scope ``layout``) the planner asks :func:`layout_violations`. Every
rule names the source that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.strategy import Strategy
from zerokit.rules.layout import LAYOUT_RULES
from zerokit.rules.strategy import STRATEGY_RULES
from zerokit.rules.types import EVERY_READER, FRAMEWORKS, READERS, Edit, Rule, Setup, Violation

_PLANNED = tuple(
    r for r in (*STRATEGY_RULES, *LAYOUT_RULES) if r.scope == "strategy" and r.severity != "note"
)

__all__ = [
    "EVERY_READER",
    "FRAMEWORKS",
    "READERS",
    "Edit",
    "Rule",
    "Setup",
    "Violation",
    "all_rules",
    "first_violation",
    "layout_violations",
    "rule",
    "violations",
]


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, in the order findings are shown; a plan loads those of strategies alone."""
    from zerokit.rules.batch import BATCH_RULES
    from zerokit.rules.file import FILE_RULES, FRAMEWORK_RULES
    from zerokit.rules.removed import OLDER_RULES, REMOVED_RULES
    from zerokit.rules.training import TRAINING_RULES

    return (
        *STRATEGY_RULES, *LAYOUT_RULES, *BATCH_RULES, *FILE_RULES, *FRAMEWORK_RULES, *TRAINING_RULES,
        *REMOVED_RULES, *OLDER_RULES,
    )  # fmt: skip


def rule(rule_id: str) -> Rule:
    """The rule of that id. Raises KeyError: there is none."""
    return {candidate.id: candidate for candidate in all_rules()}[rule_id]


def violations(setup: Setup) -> list[Violation]:
    """Every rule that ``setup`` breaks: those of scope ``file`` only when there is a file, those of scope
    ``layout`` only when the model is known."""
    available = {"strategy": True, "file": setup.raw is not None, "layout": setup.model is not None}
    return list(_broken((candidate for candidate in all_rules() if available[candidate.scope]), setup))


def layout_violations(setup: Setup) -> Iterator[Violation]:
    """The rules that the division of ``setup.model`` over GPUs breaks. Warnings among them say what works, but
    is not worth choosing."""
    return _broken(LAYOUT_RULES, setup)


def _broken(rules: Iterable[Rule], setup: Setup) -> Iterator[Violation]:
    for candidate in rules:
        details = candidate.broken(setup)
        if details:
            yield Violation(rule=candidate, details={} if details is True else dict(details))


def first_violation(
    strategy: Strategy, *, gpus_per_node: int | None = None, key_value_heads: int | None = None
) -> Violation | None:
    """The first rule that makes a planned strategy illegal or pointless; ``None`` when it is legal, or when
    another engine than DeepSpeed, whose rules these are, trains."""
    if strategy.engine != "deepspeed":
        return None
    setup = Setup(
        settings=deepspeed(strategy.settings),
        world_size=strategy.world_size,
        tensor_parallel=strategy.tensor_parallel,
        pipeline_parallel=strategy.pipeline_parallel,
        sequence_parallel=strategy.sequence_parallel,
        gpus_per_node=gpus_per_node,
        key_value_heads=key_value_heads,
    )
    return next(_broken(_PLANNED, setup), None)
