"""The optimizer that Transformers' Trainer makes for ``optim=NAME``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def trainers_optimizer(name: str, parameters: list[Any], model: Any = None, **more: Any) -> Any:
    """One group of ``parameters``, or those that a low-rank optimizer makes of ``model``.

    ``more``: further arguments of its class.
    """
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext

    arguments = SimpleNamespace(
        optim=name, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, weight_decay=0.0, warmup_steps=0,
        parallel_mode=None, optim_target_modules="all-linear", gradient_accumulation_steps=1,
    )  # fmt: skip
    adam = {"betas": (0.9, 0.999), "eps": 1e-8}
    context = OptimizerContext(
        args=arguments, model=model, optimizer_kwargs={"lr": 1e-3}, adam_kwargs=adam, optim_args={}
    )
    kind, options = _OPTIMIZER_HANDLERS[name](context)
    options |= more
    return kind(options.pop("params", None) or options.pop("model", None) or parameters, **options)
