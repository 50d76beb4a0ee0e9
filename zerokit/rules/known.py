"""What DeepSpeed and those who hand it a configuration know by name: optimizers, schedulers, filled keys."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.domain.client_optimizers import ClientOptimizer, client_optimizer

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
    "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping",
    *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"scheduler.params.{name}"
      for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")),
)  # fmt: skip
"""What the Trainer fills from TrainingArguments, refusing a literal that differs:
transformers/integrations/deepspeed.py, ``trainer_config_process`` and ``trainer_config_finalize``."""


TAKEN_AS: Mapping[str, str] = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
    "adafactor": "Adafactor",
    "lion_32bit": "Lion",
}
"""Name -> DeepSpeed's or torch's type with states of the same size on ZeRO's flat partitions."""

_PROJECTED = (
    "it projects the gradients of matrices: under ZeRO, which flattens them, its step fails, and at stage 0 what "
    "its projections allocate is not known"
)
_APOLLO = (
    "it scales by the gradients of matrices: under ZeRO, which flattens them, its step fails, and at stage 0 what "
    "its projections allocate is not known"
)
_INSIDE = "it steps within backward, where DeepSpeed reduces gradients itself; the Trainer refuses it on several GPUs"
_FUSED = "it steps within backward and frees each gradient there, which DeepSpeed's reduction then misses"

NOT_MODELLED: Mapping[str, str] = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend NPUs",
    "adamw_anyprecision": "its package, torchdistx, has no release for the torch versions that zerokit supports",
    "galore_adamw": _PROJECTED,
    "galore_adamw_8bit": _PROJECTED,
    "galore_adafactor": _PROJECTED,
    "galore_adamw_layerwise": _INSIDE,
    "galore_adamw_8bit_layerwise": _INSIDE,
    "galore_adafactor_layerwise": _INSIDE,
    "apollo_adamw": _APOLLO,
    "apollo_adamw_layerwise": _INSIDE,
    "lomo": _FUSED,
    "adalomo": _FUSED,
    "grokadamw": "it keeps its states in host memory and copies them to the GPU and back in every step",
}
"""Name -> why no figure is given for it. What fails under DeepSpeed was seen to, on CPU ranks with DeepSpeed
0.19.8: galore-torch 1.0, apollo-torch 1.0.3, lomo-optim 0.1.1."""


def is_same_optimizer(name: str, other: str) -> bool:
    """Whether two names, a Trainer's or DeepSpeed's, are of one optimizer: ``adamw_8bit`` and
    ``adamw_bnb_8bit``, ``adamw_torch`` and ``AdamW``."""
    return _kind(name) == _kind(other)


def _kind(name: str) -> ClientOptimizer | str:
    """What is known of a script's, or DeepSpeed's type, where Adam decays weights as AdamW does."""
    kind = TAKEN_AS.get(name, name).lower()
    return client_optimizer(name) or ("adamw" if kind == "adam" else kind)
