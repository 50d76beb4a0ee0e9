"""What DeepSpeed and those who hand it a configuration know by name: optimizers, schedulers, filled keys."""

from __future__ import annotations

from collections.abc import Mapping

DEEPSPEED_OPTIMIZERS = frozenset(
    {"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"}
)
"""deepspeed/runtime/config.py, DEEPSPEED_OPTIMIZERS, lower-cased; others are looked up in torch.optim."""

ONE_BIT_OPTIMIZERS = frozenset({"onebitadam", "onebitlamb", "zerooneadam"})
"""Removed from DeepSpeed 0.19."""

TORCH_OPTIMIZERS = {
    name.lower(): name
    for name in (
        "Adadelta", "Adafactor", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
        "SparseAdam",
    )
}  # fmt: skip
"""Lower case -> as written: looked up by ``getattr(torch.optim, name)``, so their case matters."""

ZERO_TESTED_OPTIMIZERS = frozenset({"adam", "adamw", "adagrad", "lion", "muon"})
"""ZERO_SUPPORTED_OPTIMIZERS of deepspeed/runtime/zero/utils.py, as types of the file, lower-cased."""

HOST_OPTIMIZERS = frozenset({"adam", "adamw", "adagrad", "lion"})
"""Those that DeepSpeed has a kernel for on the host."""

TORCH_SCHEDULERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ChainedScheduler": ((), ("optimizer",)),
    "ConstantLR": ((), ("factor", "total_iters")),
    "CosineAnnealingLR": (("T_max",), ("eta_min",)),
    "CosineAnnealingWarmRestarts": (("T_0",), ("T_mult", "eta_min")),
    "CyclicLR": (
        ("base_lr", "max_lr"),
        ("step_size_up", "step_size_down", "mode", "gamma", "scale_fn", "scale_mode", "cycle_momentum",
         "base_momentum", "max_momentum"),
    ),
    "ExponentialLR": (("gamma",), ()),
    "LambdaLR": (("lr_lambda",), ()),
    "LinearLR": ((), ("start_factor", "end_factor", "total_iters")),
    "MultiStepLR": (("milestones",), ("gamma",)),
    "MultiplicativeLR": (("lr_lambda",), ()),
    "OneCycleLR": (
        ("max_lr",),
        ("total_steps", "epochs", "steps_per_epoch", "pct_start", "anneal_strategy", "cycle_momentum",
         "base_momentum", "max_momentum", "div_factor", "final_div_factor", "three_phase"),
    ),
    "PolynomialLR": ((), ("total_iters", "power")),
    "ReduceLROnPlateau": (
        (), ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"),
    ),
    "SequentialLR": (("schedulers", "milestones"), ()),
    "StepLR": (("step_size",), ("gamma",)),
}  # fmt: skip
"""torch.optim.lr_scheduler: DeepSpeed looks there for what it has not itself (runtime/engine.py:1929), and
passes ``params`` on. Their required and optional parameters; ``last_epoch`` and, before torch 2.7, ``verbose``
are taken by all."""

SCHEDULERS = frozenset({"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
"""deepspeed/runtime/lr_schedules.py, VALID_LR_SCHEDULES."""

TRAINER_FILLS = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "gradient_clipping",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.total_num_steps",
)
"""What the Trainer fills from TrainingArguments, refusing a literal that differs:
transformers/integrations/deepspeed.py, ``trainer_config_process`` and ``trainer_config_finalize``."""
