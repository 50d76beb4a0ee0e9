"""Ranks that send each other how many rows come: ``chain``, ``objects``, ``ring``, a chain of other sizes
(``unlike``), or the first gathers what each has and tells the others the least (``counted``)."""

import os
import sys

import torch

kind = sys.argv[1]
from torch import distributed  # noqa: E402 (as the other scripts here, it begins with torch alone)

distributed.init_process_group("nccl")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.AdamW(layer.parameters())


def received(rows: int) -> int:
    """How many rows the rank before has; the first says."""
    size = torch.tensor([rows], device="cuda")
    other = torch.empty_like(size)
    if kind == "ring":
        messages = [
            distributed.P2POp(distributed.isend, size, (rank + 1) % ranks),
            distributed.P2POp(distributed.irecv, other, (rank - 1) % ranks),
        ]
        for work in distributed.batch_isend_irecv(messages):
            work.wait()
        return int(other)
    if kind == "counted":
        sizes = [torch.empty_like(size) for _ in range(ranks)] if rank == 0 else None
        distributed.gather(size, sizes)
        least = torch.tensor(float(min(map(int, sizes))) if rank == 0 else 0.0, device="cuda")
        distributed.broadcast(least, 0)
        return int(least)
    if rank:
        if kind == "objects":
            objects = [None]
            distributed.recv_object_list(objects, rank - 1)
            rows = objects[0]["rows"]
        else:
            distributed.recv(other, rank - 1)
            rows = int(other)
    if rank + 1 < ranks:
        if kind == "objects":
            distributed.send_object_list([{"rows": 2 * rows}], rank + 1)
        else:
            message = torch.tensor([2 * rows], device="cuda")
            distributed.send(message.int() if kind == "unlike" else message, rank + 1)
    return rows


for _ in range(4):
    rows = received(4096)
    layer(torch.randn(rows, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
