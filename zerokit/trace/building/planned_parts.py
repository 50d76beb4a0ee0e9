"""Divide a model's layers as Transformers does by the model's own tensor parallel plan.

``apply_tensor_parallelism`` (transformers/distributed/tensor_parallel.py, 5.23) makes parameters DTensors and
puts their collectives around the layers' forward; here with torch's fake process group, as one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zerokit.errors import InputError

_REDUCED_IN_PLACE = ("replicated_with_grad_allreduce",)
"""Whole weights whose gradients are summed over the ranks when they are ready, which takes no memory."""


def local(tensor: Any) -> Any:
    """Take what this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def like(tensor: Any, held: torch.Tensor) -> Any:
    """Make another tensor of which this rank holds ``held``, divided as the first is."""
    if not hasattr(tensor, "from_local"):
        return held
    return tensor.from_local(
        held, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape,
        stride=tensor.stride(),
    )  # fmt: skip


def divide(model: Any, degree: int) -> None:
    """Divide the layers for rank 0 of ``degree``, in place (meta tensors). Raises InputError: Transformers
    names no plan for the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    if not getattr(model, "_tp_plan", None):
        raise InputError(f"⟨tp⟩ {degree}: Transformers has no plan to divide {type(model).__name__}")
    for name in model.all_tied_weights_keys:  # tied when they are loaded, which is after they are divided
        parent, _, last = name.rpartition(".")
        whole = torch.empty_like(model.get_parameter(name))
        setattr(model.get_submodule(parent), last, nn.Parameter(whole))
    plan = model._resolve_parallel_plans(DistributedConfig(tp_size=degree))[0]
    plan = {name: style for name, style in plan.items() if style not in _REDUCED_IN_PLACE}
    apply_tensor_parallelism(model, init_device_mesh("cpu", (degree,), mesh_dim_names=("tp",)), plan)


@contextmanager
def peers(degree: int) -> Iterator[None]:
    """While active, this process is rank 0 of ``degree`` that do nothing; 1: it is none. Raises InputError:
    it is one of other ranks already."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if degree == 1:
        yield
        return
    if dist.is_initialized():
        raise InputError(f"⟨tp⟩ {degree}: this process is a rank of torch.distributed; ask in another one")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=degree)
    try:
        yield
    finally:
        dist.destroy_process_group()
