"""Rank 1 reduces a tensor of another size. PyTorch's fake backend compares nothing, as NCCL does not."""

from __future__ import annotations

import os

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

RANK = int(os.environ["RANK"])


def main() -> None:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=2)
    for step in range(4):
        torch.distributed.all_reduce(torch.ones(8 if step == 2 and RANK == 1 else 4))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
