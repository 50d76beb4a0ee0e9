"""What makes a DeepSpeed configuration legal: one table, for the planner and for ``zerokit check``.

The planner asks :func:`first_violation` of a strategy (settings and degrees only, microseconds);
``check`` asks :func:`violations` of a file with the raw dictionary, which the rules of scope ``file``
need. Every rule names the DeepSpeed source that it stands for.
"""

from __future__ import annotations

from zerokit.domain.strategy import Strategy
from zerokit.rules.batch import BATCH_RULES
from zerokit.rules.file import FILE_RULES
from zerokit.rules.removed import REMOVED_RULES
from zerokit.rules.strategy import STRATEGY_RULES
from zerokit.rules.training import TRAINING_RULES
from zerokit.rules.types import EVERY_READER, FRAMEWORKS, READERS, Edit, Rule, Setup, Violation

RULES: tuple[Rule, ...] = (*STRATEGY_RULES, *BATCH_RULES, *FILE_RULES, *TRAINING_RULES, *REMOVED_RULES)
"""Every rule, in the order findings are shown."""

__all__ = [
    "EVERY_READER",
    "FRAMEWORKS",
    "READERS",
    "RULES",
    "Edit",
    "Rule",
    "Setup",
    "Violation",
    "first_violation",
    "rule",
    "violations",
]


def rule(rule_id: str) -> Rule:
    """The rule of that id.

    Raises:
        KeyError: there is none.
    """
    for candidate in RULES:
        if candidate.id == rule_id:
            return candidate
    raise KeyError(rule_id)


def violations(setup: Setup) -> list[Violation]:
    """Every rule that ``setup`` breaks; the rules of scope ``file`` only when there is a file."""
    found = []
    for candidate in RULES:
        if candidate.scope == "file" and setup.raw is None:
            continue
        details = candidate.broken(setup)
        if details:
            found.append(Violation(rule=candidate, details={} if details is True else dict(details)))
    return found


def first_violation(
    strategy: Strategy, *, gpus_per_node: int | None = None, key_value_heads: int | None = None
) -> Violation | None:
    """The first rule that makes a planned strategy illegal or pointless; ``None`` when it is legal."""
    setup = Setup(
        settings=strategy.settings,
        world_size=strategy.world_size,
        tensor_parallel=strategy.tensor_parallel,
        pipeline_parallel=strategy.pipeline_parallel,
        sequence_parallel=strategy.sequence_parallel,
        gpus_per_node=gpus_per_node,
        key_value_heads=key_value_heads,
    )
    for candidate in STRATEGY_RULES:
        if candidate.severity == "note":
            continue
        details = candidate.broken(setup)
        if details:
            return Violation(rule=candidate, details={} if details is True else dict(details))
    return None
