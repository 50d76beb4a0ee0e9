"""The loss that a plan counts on, which the script computes: whether it does, as far as its source tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.job import LOSS_OF_SCRIPT
from zerokit.script.arguments import ScriptOptions

_SIGNS = {"chunked": ("chunk",), "liger": ("liger", "Liger"), "cut": ("linear_cross_entropy", "cce_patch")}
"""Parts of the names that a script with such a loss uses."""


def of_request(request: Mapping[str, Any], *, rehearsed: bool) -> str:
    """The loss that a launch is to see to.

    Args:
        rehearsed: the plan was made with a script, whose own loss was rehearsed.
    """
    return "standard" if rehearsed else str(request.get("loss") or "standard")


def is_of_trainer(options: ScriptOptions) -> bool:
    """Whether ``use_liger_kernel`` fuses head and loss: not in a trainer of TRL, which has its own losses."""
    return options.style == "trainer" and not _is_of_trl(options)


def warnings(options: ScriptOptions, loss: str) -> list[str]:
    """Where nothing in the script looks like the planned loss, and no argument of a Trainer turns it on."""
    if loss == "standard" or options.facts.unreadable or (loss == "liger" and is_of_trainer(options)):
        return []
    names = options.facts.mentions | options.facts.keywords
    is_seen = any(sign in name for sign in _SIGNS[loss] for name in names)
    if _is_of_trl(options):
        is_seen = loss == "chunked"
    if is_seen:
        return []
    return [
        f"warning: the plan counts on ⟨loss⟩ {loss}, and the script shows no sign of it: it must "
        f"{LOSS_OF_SCRIPT[loss]}; or plan again without ⟨loss⟩"
    ]


def _is_of_trl(options: ScriptOptions) -> bool:
    return "SFTTrainer" in options.facts.mentions or options.facts.package == "trl"
