"""What the DeepSpeed engine of a rank really runs with, read at its first training forward.

The plan says one thing; the script's own arguments may say another: a Trainer decides its batch, a
data loader its size, and checkpointing is turned on by the script or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerokit.run.rankfile import Record

_LEADING = ("input_ids", "labels", "inputs_embeds", "pixel_values", "input_features")


def record(engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
    """The ``engine`` record of the rank's file; a fact that cannot be read is None.

    ``batch_rows`` and ``batch_columns``: of the tensor fed first, so sequences and tokens of each.
    """
    rows, columns = _batch(args, kwargs)
    parameters = list(engine.module.parameters())
    return {
        "type": "engine",
        "zero_stage": engine.zero_optimization_stage(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation": engine.gradient_accumulation_steps(),
        "tensor_parallel": max(1, _optional(engine, "autotp_size") or 1),
        "batch_rows": rows,
        "batch_columns": columns,
        "gradient_checkpointing": _checkpointing(engine.module),
        "parameters": sum(getattr(p, "ds_numel", None) or p.numel() for p in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
    }


def host_tensor_bytes(model: Any) -> int:
    """Bytes of a model's parameters, their shards (ZeRO-3) and its buffers in host memory, each once."""
    sizes: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        for part in (tensor, getattr(tensor, "ds_tensor", None)):
            if part is not None and part.device.type == "cpu":
                storage = part.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _optional(engine: Any, name: str) -> int | None:
    method = getattr(engine, name, None)
    return int(method()) if method is not None else None


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, int | None]:
    named = [kwargs[name] for name in _LEADING if name in kwargs]
    for value in (*named, *_flat((*args, *kwargs.values()))):
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape) >= 1:
            return int(shape[0]), int(shape[1]) if len(shape) == 2 else None
    return None, None


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from (value[name] for name in _LEADING if name in value)
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _checkpointing(module: Any) -> bool | None:
    """Whether Hugging Face layers recompute; None for a model that is not theirs."""
    flags = [
        flag
        for part in module.modules()
        if isinstance(flag := getattr(part, "gradient_checkpointing", None), bool)
    ]
    return any(flags) if flags else None
