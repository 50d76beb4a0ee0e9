"""The optimizer of a script, such as a Trainer's ``optim``, and the plan's or the file's.

With an ``optimizer`` in DeepSpeed's configuration a Trainer makes that one and does not look at its ``optim``
(transformers/integrations/deepspeed.py, deepspeed_optim_sched, 5.24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.errors import InputError
from zerokit.rules.known import TORCH_OPTIMIZERS
from zerokit.rules.trainer_optimizers import NOT_MODELLED, is_same_optimizer
from zerokit.script.arguments import ScriptOptions

_DEFAULT = "AdamW"
"""Of a plan and of a Trainer."""
_CLASSES = {"Adam", "AdamW", "Adagrad", *TORCH_OPTIMIZERS.values()}
"""Of torch.optim."""


def with_optimizer_of(script: ScriptOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plan, with the optimizer that the script has where none was given.

    Raises:
        InputError: another one was given than the script's, or the script's is not modelled.
    """
    decided = script.decided("optim") if script.style == "trainer" else None
    if decided is None or options.get("inference"):
        return dict(options)
    name, location = str(decided[0]), decided[1]
    if name in NOT_MODELLED:
        raise InputError(
            f"{location}: not modelled: {NOT_MODELLED[name]}; use adamw_torch, or adamw_bnb_8bit, which "
            "keeps its states in 8 bits, or measure with `zerokit launch --no-plan`"
        )
    requested = options.get("optimizer")
    if is_same_optimizer(name, str(requested or _DEFAULT)):
        return dict(options)
    if requested:
        raise InputError(
            f"⟨optimizer⟩ {requested}: {location}; leave ⟨optimizer⟩ out, or change the script to {requested}"
        )
    return {**options, "optimizer": name}


def made_by_script(request: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The Trainer's name of the optimizer that a plan leaves to the script; None: DeepSpeed makes it."""
    name = request.get("optimizer")
    return str(name) if "optimizer" not in config and client_optimizer(name) is not None else None


def conflicts(options: ScriptOptions, config: Mapping[str, Any]) -> list[str]:
    """Of the user's ``optim`` where DeepSpeed's configuration has another optimizer, which goes first."""
    decided = options.decided("optim")
    block = config.get("optimizer")
    if options.style != "trainer" or decided is None or not isinstance(block, Mapping):
        return []
    planned = str(block.get("type"))
    if is_same_optimizer(str(decided[0]), planned):
        return []
    return [
        f"{decided[1]}, but the plan has {planned} in DeepSpeed's configuration, which a Trainer "
        "takes instead"
    ]


def refused_beside_file(options: ScriptOptions, config: Mapping[str, Any]) -> str | None:
    """The optimizer that an Accelerate script makes and prepares beside the file's; None: none, as far as its
    code shows.

    Accelerate takes nothing but a ``DummyOptim`` then (1.15, accelerator.py:2251).
    """
    facts = options.facts
    made = sorted(facts.mentions & _CLASSES)
    decides_itself = "DummyOptim" in facts.mentions or facts.asks_for_optimizer
    if "optimizer" not in config or not made or decides_itself or "prepare" not in facts.mentions:
        return None
    return made[0]
