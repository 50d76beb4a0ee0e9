"""Two barriers, then a GradScaler over bf16 gradients, which CUDA has no kernel for."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
dist.barrier()
dist.barrier()
assert torch.cuda.memory_allocated() == 512, torch.cuda.memory_allocated()
assert torch.cuda.max_memory_allocated() == 1024, torch.cuda.max_memory_allocated()
dist.barrier(group=dist.new_group(backend="gloo"))
assert torch.cuda.max_memory_allocated() == 1024, torch.cuda.max_memory_allocated()

layer = torch.nn.Linear(8, 8, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
scaler.scale(layer(torch.ones(1, 8, device="cuda", dtype=torch.bfloat16)).sum()).backward()
scaler.step(optimizer)
