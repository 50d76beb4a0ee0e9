"""The ``optim`` names of Transformers' Trainer (``OptimizerNames``, transformers 5.23): what each is to DeepSpeed.

Those that DeepSpeed or torch has too are taken as that; what keeps or steps its states in another way is not
modelled, and refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

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

_EIGHT = "it keeps its states in 8 bits, with a scale for each block"
_PAGED = "its states lie in memory that the driver moves between GPU and host"
_PROJECTED = "it projects the gradients of matrices, which ZeRO has flattened"
_INSIDE = "it steps within backward, where DeepSpeed reduces gradients itself"
_PACKAGE = "it comes from a package of its own"
_BITSANDBYTES = "bitsandbytes steps it with kernels of its own"

NOT_MODELLED: Mapping[str, str] = {
    "adamw_torch_xla": "it is for TPUs",
    "adamw_torch_npu_fused": "it is for Ascend NPUs",
    "adamw_anyprecision": _PACKAGE,
    "adamw_torch_4bit": "it keeps its states in 4 bits, with a scale for each block",
    "adamw_torch_8bit": _EIGHT,
    "adamw_bnb_8bit": _EIGHT,
    "adamw_8bit": _EIGHT,
    "lion_8bit": _EIGHT,
    "ademamix": _BITSANDBYTES,
    "ademamix_8bit": _EIGHT,
    "rmsprop_bnb": _BITSANDBYTES,
    "rmsprop_bnb_8bit": _EIGHT,
    "rmsprop_bnb_32bit": _BITSANDBYTES,
    "paged_adamw_32bit": _PAGED,
    "paged_adamw_8bit": _PAGED,
    "paged_ademamix_32bit": _PAGED,
    "paged_ademamix_8bit": _PAGED,
    "paged_lion_32bit": _PAGED,
    "paged_lion_8bit": _PAGED,
    "galore_adamw": _PROJECTED,
    "galore_adamw_8bit": _PROJECTED,
    "galore_adafactor": _PROJECTED,
    "galore_adamw_layerwise": _INSIDE,
    "galore_adamw_8bit_layerwise": _INSIDE,
    "galore_adafactor_layerwise": _INSIDE,
    "apollo_adamw": _PROJECTED,
    "apollo_adamw_layerwise": _INSIDE,
    "lomo": _INSIDE,
    "adalomo": _INSIDE,
    "grokadamw": _PACKAGE,
    "schedule_free_radam": _PACKAGE,
    "schedule_free_adamw": _PACKAGE,
    "schedule_free_sgd": _PACKAGE,
    "stable_adamw": _PACKAGE,
}
"""Name -> why no figure is given for it."""
