"""Two barriers, DDP with a hook of the script's own, then a GradScaler over bf16 gradients.

CUDA has no kernel for the last.
"""

import torch

torch.manual_seed(0)
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (  # noqa: E402
    fp16_compress_hook,
)

dist.init_process_group("nccl")
dist.barrier()
dist.barrier()
assert torch.cuda.memory_allocated() == 512, torch.cuda.memory_allocated()
assert torch.cuda.max_memory_allocated() == 1024, torch.cuda.max_memory_allocated()
dist.barrier(group=dist.new_group(backend="gloo"))
assert torch.cuda.max_memory_allocated() == 1024, torch.cuda.max_memory_allocated()

buckets = []


def halved(state, bucket):
    buckets.append(bucket.buffer().numel())
    return fp16_compress_hook(state, bucket)


replica = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
replica.register_comm_hook(None, halved)
replica(torch.ones(1, 64, device="cuda")).sum().backward()
assert buckets == [64 * 64 + 64], buckets
assert replica.module.weight.grad.dtype == torch.float32

layer = torch.nn.Linear(8, 8, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
scaler.scale(layer(torch.ones(1, 8, device="cuda", dtype=torch.bfloat16)).sum()).backward()
scaler.step(optimizer)
