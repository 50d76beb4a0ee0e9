"""The ``optim`` names of Transformers' Trainer (``OptimizerNames``, transformers 5.23): what each is to DeepSpeed.

Those that DeepSpeed or torch has too are taken as that; ``CLIENT_OPTIMIZERS`` has those that the script makes;
the others are not modelled, and refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.domain.client_optimizers import ClientOptimizer, client_optimizer

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
_COMPILED = (
    "torch.compile makes its step, and what that allocates was measured on no GPU; its states are {bits} bits only "
    "where a tensor's elements divide by its block"
)

NOT_MODELLED: Mapping[str, str] = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend NPUs",
    "adamw_anyprecision": "its package, torchdistx, has no release for the torch versions that zerokit supports",
    "adamw_torch_4bit": _COMPILED.format(bits=4),
    "adamw_torch_8bit": _COMPILED.format(bits=8),
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
