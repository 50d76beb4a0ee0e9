"""What needs PyTorch, in a process of its own: ``python -m zerokit.checkpoints.in_torch TASK ARGS``.

A checkpoint is a pickle. Facts are read without running anything of it; DeepSpeed's converters and resuming
run what is in it.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_ADAM = {"exp_avg", "exp_avg_sq"}


def zero_facts(folder: str) -> dict[str, Any]:
    """What a conversion has to know of a ZeRO checkpoint beside its files' sizes, read from the first
    rank's; tensors stay on the disk."""
    states = _load(min(Path(folder).glob("*_optim_states.pt")))["optimizer_state_dict"]
    model = _load(min(Path(folder).glob("*_model_states.pt")))
    base = states.get("base_optimizer_state") or states.get("optimizer_state_dict") or {}
    groups = base.get("state") or {} if isinstance(base, dict) else {}
    counts = states["partition_count"]  # ZeRO-1 and 2 have each group's
    kept = sorted({key for group in groups.values() for key in group} - {"step"})
    shapes = [shape for group in model["param_shapes"] or () for shape in group.values()]
    frozen = model.get("frozen_param_shapes") or {}
    sizes = [size for shape in [*shapes, *frozen.values()] for size in shape]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError("a weight's shape is not of whole numbers")
    zero = (model.get("ds_config") or {}).get("zero_optimization") or {}
    return {
        "ranks": max(counts) if isinstance(counts, list) else counts,
        "states": kept,
        "is_adam": set(kept) == _ADAM,
        "buffers": sorted(model.get("buffer_names") or ()),
        "frozen": sorted(frozen),
        "weights": sum(map(math.prod, [*shapes, *frozen.values()])),
        "adapters": any(".lora_" in name for group in model["param_shapes"] or () for name in group),
        "names": len(shapes),
        "largest": max(map(math.prod, shapes), default=0),
        "mics": int(zero.get("mics_shard_size") or 0),
    }


def scheduler_steps(folder: str) -> list[int]:
    """How far the learning rate schedules of ``Accelerator.save_state`` have counted."""
    kept = [_load(path) for path in sorted(Path(folder).glob("scheduler*.bin"))]
    return [int(one["last_epoch"]) for one in kept if "last_epoch" in one]


def to_universal(folder: str, out: str, workers: str) -> None:
    """Convert with DeepSpeed's own converter (0.19.8, checkpoint/ds_to_universal.py)."""
    from deepspeed.checkpoint import ds_to_universal

    asked = argparse.Namespace(
        input_folder=folder,
        output_folder=out,
        num_extract_workers=int(workers),
        num_merge_workers=min(2, int(workers)),
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    ds_to_universal.main(asked)


def zero_to_weights(folder: str, tag: str, out: str) -> None:
    """Write fp32 weights with DeepSpeed's own converter (0.19.8, utils/zero_to_fp32.py). Of weights that are
    tied it writes one: safetensors refuses both, and the configuration ties them again."""
    from deepspeed.utils import zero_to_fp32

    read = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint

    def untied(*args: Any, **kwargs: Any) -> dict[str, Any]:
        state = read(*args, **kwargs)
        first = {id(tensor): name for name, tensor in reversed(state.items())}
        return {name: tensor for name, tensor in state.items() if first[id(tensor)] == name}

    zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint = untied
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder, out, safe_serialization=True, tag=tag)


def sharded_to_weights(folder: str, out: str) -> None:
    """Write the weights with Accelerate's own merger (1.15, utils/fsdp_utils.py:473)."""
    from accelerate.utils import merge_fsdp_weights

    merge_fsdp_weights(folder, out, safe_serialization=True)


def _load(path: Path) -> Any:
    """Read tensors, numbers and containers as torch's ``weights_only`` does (2.13), and in the place of any
    other object, which that refuses (DeepSpeed saves its configuration's and its loss scaler's), nothing."""
    import torch
    from torch._weights_only_unpickler import _get_allowed_globals
    from torch.serialization import _is_torchscript_zip, _open_zipfile_reader

    with _open_zipfile_reader(str(path)) as archive:  # torch.load runs a program's __setstate__
        if _is_torchscript_zip(archive):
            raise pickle.UnpicklingError(f"{path.name} is a TorchScript program, not a checkpoint")

    allowed = _get_allowed_globals()

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return allowed.get(f"{module}.{name}", _Nothing)

    reader = SimpleNamespace(Unpickler=Unpickler, __name__=__name__)
    return torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=reader)


class _Nothing:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


_TASKS = {
    one.__name__: one
    for one in (zero_facts, scheduler_steps, to_universal, zero_to_weights, sharded_to_weights)
}

if __name__ == "__main__":
    result = _TASKS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(result), flush=True)
