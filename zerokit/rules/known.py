"""What DeepSpeed and those who hand it a configuration know by name: optimizers, schedulers, filled keys."""

from __future__ import annotations

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

TORCH_SCHEDULERS = frozenset(
    {
        "LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR",
        "SequentialLR", "CosineAnnealingLR", "ChainedScheduler", "ReduceLROnPlateau", "CyclicLR",
        "CosineAnnealingWarmRestarts", "OneCycleLR", "PolynomialLR",
    }
)  # fmt: skip
"""torch.optim.lr_scheduler: DeepSpeed looks there for what it has not itself (runtime/engine.py:1929)."""

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
