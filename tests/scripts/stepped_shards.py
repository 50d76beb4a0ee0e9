"""Two steps of optimizers on what FSDP2 divides, on two CPU ranks: ``stepped_shards.py OPTIM...``.

A Trainer's names. Rank 0 prints what each keeps of its shards in bytes, or how it fails, as JSON.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # which take one subclass of tensors for another

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Trainer, TrainingArguments

torch.set_num_threads(1)
dist.init_process_group("gloo")


def kept_bytes(value: torch.Tensor) -> int:
    local = value.to_local() if hasattr(value, "to_local") else value
    if not hasattr(local, "__tensor_flatten__"):
        return local.numel() * local.element_size()
    return sum(kept_bytes(getattr(local, name)) for name in local.__tensor_flatten__()[0])


def stepped(name: str) -> int | str:
    model = torch.nn.Linear(256, 256, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    arguments = TrainingArguments(output_dir="out", optim=name, use_cpu=True, report_to="none")
    made, keywords = Trainer.get_optimizer_cls_and_kwargs(arguments)
    optimizer = made(model.parameters(), **keywords)
    if hasattr(optimizer, "train"):
        optimizer.train()  # schedulefree's
    try:
        for _ in range(2):
            model(torch.ones(1, 256)).sum().backward()
            optimizer.step()
    except (RuntimeError, NotImplementedError) as error:
        return str(error).partition("\n")[0]
    tensors = (value for state in optimizer.state.values() for value in state.values())
    return sum(
        kept_bytes(value) for value in tensors if isinstance(value, torch.Tensor) and value.numel() > 1
    )


found = {name: stepped(name) for name in sys.argv[1:]}
if dist.get_rank() == 0:
    print("SEEN " + json.dumps(found))
dist.destroy_process_group()
