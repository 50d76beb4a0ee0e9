"""What DeepSpeed and those who hand it a configuration know by name: optimizers, schedulers, filled keys."""

from __future__ import annotations

DEEPSPEED_OPTIMIZERS = frozenset(
    {"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"}
)
"""deepspeed/runtime/config.py, DEEPSPEED_OPTIMIZERS, lower-cased; others are looked up in torch.optim."""

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

ALSO_FILLED = frozenset(
    {
        # by the Trainer and Accelerate, from the model and the precision
        "fp16.enabled", "bf16.enabled", "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_param_persistence_threshold",
        # by Accelerate's plugin, from its own arguments (accelerate/utils/dataclasses.py, DeepSpeedPlugin)
        "zero_optimization.stage", "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
)  # fmt: skip
"""Keys that somebody else than raw DeepSpeed fills when they say ``"auto"``."""
