"""What a model that FSDP2 has divided really runs with, read at its training forwards.

``fully_shard`` makes a module an ``FSDPModule`` and keeps beside it how its parameters are gathered (torch
2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py).
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from zerokit.instrument.engine_facts import EngineFacts, adapters, checkpointing, fact, unlike_lora
from zerokit.instrument.live_models import elements, live_modules, parameters_beside

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class DividedModels:
    """Tells a rank's facts of the divided models that are called."""

    def __init__(self, observed: EngineFacts) -> None:
        self._observed = observed
        self._divided: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def training_forward(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a training forward of an outermost module, which may be divided or not."""
        fully_sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
        if fully_sharded is None:
            return
        if model not in self._divided:
            self._divided[model] = any(isinstance(part, fully_sharded) for part in model.modules())
        if self._divided[model]:
            self._observed.training_forward(model, args, kwargs, sum(self._divided.values()), read=record)


def record(model: Any) -> dict[str, Any]:
    """Read what stays the same for a divided model, as
    :func:`zerokit.instrument.engine_facts.record` has it of an engine; what cannot be read is
    None. ``dtype``: of the forward pass; ``shard_dtype``: of trained shards; ``wrapping``: as
    :class:`zerokit.domain.fsdp2_settings.Fsdp2Settings` has it."""
    groups = fact(lambda: _groups(model)) or []
    layers = groups[1:] or groups  # the outermost keeps its weights, whatever it was told
    parameters = list(model.parameters())
    dtype = fact(lambda: _name(groups[0].mp_policy.param_dtype or parameters[0].dtype))
    offload = fact(lambda: "cpu" if "CPU" in type(groups[0].offload_policy).__name__ else "none")
    return {
        "type": "engine",
        "engine": "fsdp2",
        "zero_stage": None,
        "gradient_accumulation": None,
        "offload_optimizer": offload,
        "offload_param": offload,
        "precision": _PRECISIONS.get(str(dtype)),
        "micro_batch": None,
        "tensor_parallel": None,
        "optimizer": None,
        "gradient_checkpointing": fact(lambda: _is_wrapped(model) or checkpointing(model)),
        "parameters": sum(map(elements, parameters)),
        "trainable_parameters": sum(elements(one) for one in parameters if one.requires_grad),
        "other_parameters": fact(lambda: parameters_beside(model, live_modules())),
        "adapters": fact(lambda: lora.to_dict() if (lora := adapters(model)) else None),
        "adapters_unlike_lora": fact(lambda: unlike_lora(model)),
        "dtype": dtype,
        "sharding": fact(lambda: int(groups[0].mesh_info.mesh.shape[-1])),
        "wrapping": fact(lambda: _wrapping(model)),
        "reduce_dtype": fact(lambda: _name(groups[0].mp_policy.reduce_dtype)),
        "shard_dtype": fact(lambda: _name(next(one.dtype for one in parameters if one.requires_grad))),
        "reshard_after_forward": fact(
            lambda: any(one.post_forward_mesh_info is not None for one in layers) if layers else None
        ),
        "skippable": {},
    }


def _groups(model: Any) -> list[Any]:
    """Parameter groups, one of each call of ``fully_shard``, the outermost first."""
    fully_sharded = sys.modules["torch.distributed.fsdp"].FSDPModule
    states = (part._get_fsdp_state() for part in model.modules() if isinstance(part, fully_sharded))
    return [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]


def _name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _wrapping(model: Any) -> str:
    """Accelerate divides the input embedding by itself, or with what it is tied to."""
    embedding = model.get_input_embeddings()
    fully_sharded = sys.modules["torch.distributed.fsdp"].FSDPModule
    return "accelerate" if isinstance(embedding, fully_sharded) else "layers"


def _is_wrapped(model: Any) -> bool:
    """Whether layers were wrapped to be recomputed, as Accelerate does it (utils/fsdp_utils.py, 1.15)."""
    kinds = {
        base for part in model.modules() for base in type(part).__mro__
    }  # a divided one has another name
    return any(kind.__name__ == "CheckpointWrapper" for kind in kinds)
