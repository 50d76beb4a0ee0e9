"""The loss that a plan counts on, which the script computes: whether it does, as far as its source tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.job import LOSS_OF_SCRIPT
from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import truth

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
    if (loss == "liger" and is_of_trainer(options)) or _is_seen(options, loss):
        return []
    return [
        f"warning: the plan counts on ⟨loss⟩ {loss}, and the script shows no sign of it: it must "
        f"{LOSS_OF_SCRIPT[loss]}; or plan again without ⟨loss⟩"
    ]


def why_left_out(options: ScriptOptions, loss: str) -> str | None:
    """What to say of a loss that was asked for and that the script, which is rehearsed with its own, does not
    compute as far as its source and its arguments tell; None: it does."""
    if loss == "liger" and is_of_trainer(options):
        decided = options.decided("use_liger_kernel")
        is_computed = decided is not None and truth(decided[0]) is True
    else:
        is_computed = _is_seen(options, loss)
    if is_computed:
        return None
    return (
        f"⟨loss⟩ {loss} left out: the script shows no sign of it, and is rehearsed with its own loss; to "
        f"plan for it, the script must {LOSS_OF_SCRIPT[loss]}"
    )


def _is_seen(options: ScriptOptions, loss: str) -> bool:
    if loss == "standard" or options.facts.unreadable:
        return True
    if _is_of_trl(options):
        return loss == "chunked"
    names = options.facts.mentions | options.facts.keywords
    return any(sign in name for sign in _SIGNS[loss] for name in names)


def _is_of_trl(options: ScriptOptions) -> bool:
    return "SFTTrainer" in options.facts.mentions or options.facts.package == "trl"
