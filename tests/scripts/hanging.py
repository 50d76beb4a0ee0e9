"""Hangs in the way that its last argument names: ZeRO-3 or plain torch.distributed, on CPU ranks or GPUs.

The odd one out is the last rank.
"""

from __future__ import annotations

import fcntl
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

KIND = sys.argv[-1].removesuffix("-gone")
ON_GPU = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
HIDDEN = 1024 if ON_GPU else 32  # a small gather that nobody answers ends all the same with NCCL
AT_STEP = 4
RANK, LAST = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1


class Model(torch.nn.Module):
    """A trunk, and a tower that text-only batches do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(HIDDEN, HIDDEN)
        self.visual = torch.nn.Linear(HIDDEN, 2 * HIDDEN)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(2))
        self.head = torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, image: bool, experts: int = 2) -> torch.Tensor:
        x = self.embed(x)
        for expert in self.experts[:experts]:
            x = x + expert(x)
        if image:
            x = x + self.visual(x)[:, :HIDDEN]
        return self.head(x).square().mean()


class Slow(torch.utils.data.Dataset):
    """Its fifth item never comes on the last rank."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "loader" and index >= 2 * AT_STEP and RANK == LAST:
            time.sleep(100_000)
        return torch.ones(HIDDEN)


def lock_each_other(first: threading.Lock, second: threading.Lock) -> None:
    """This thread holds one lock and wants the other, a second thread the other way round."""
    held = threading.Event()

    def flush() -> None:
        with second:
            held.set()
            with first:
                pass

    with first:
        threading.Thread(target=flush, daemon=True, name="flusher").start()
        held.wait()
        with second:
            pass


def data_parallel() -> None:
    """Plain DDP, whose buckets C++ reduces: the last rank does one backward less."""
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    for step in range(2 * AT_STEP):
        loss = model(torch.ones(2, HIDDEN), True)
        if step == AT_STEP and RANK == LAST:
            torch.distributed.barrier()
        loss.backward()


def main() -> None:
    if KIND == "data-parallel":
        return data_parallel()
    import deepspeed

    deepspeed.init_distributed(dist_backend="nccl" if ON_GPU else "gloo")
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    if KIND == "evaluate":  # so small a model would stay gathered
        config["zero_optimization"] |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
    engine, *_ = deepspeed.initialize(
        model=(model := Model()), model_parameters=model.parameters(), config=config
    )
    device = engine.device
    halves = [torch.distributed.new_group([entry]) for entry in range(LAST + 1)]
    other = torch.distributed.new_group([*range(LAST + 1)])
    loader = torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=1 if KIND == "loader" else 0)
    lock = threading.Lock()
    for step, batch in enumerate(loader):
        odd = step == AT_STEP and RANK == LAST
        batch = batch.to(device)
        if KIND == "uneven" and odd:
            break
        if odd:
            if KIND == "lock":
                lock.acquire()
                lock.acquire()
            elif KIND == "stopped":
                os.kill(os.getpid(), 19)
            elif KIND == "compile":
                subprocess.run(["sleep", "100000"], check=True)
            elif KIND == "thread":
                worker = threading.Thread(target=threading.Event().wait, daemon=True, name="uploader")
                worker.start()
                worker.join()
            elif KIND == "oom":
                raise MemoryError("cannot allocate 80 GiB")
            elif KIND == "dead":
                os._exit(0)
            elif KIND == "queue":
                queue.Queue().get()
            elif KIND == "two-locks":
                lock_each_other(lock, threading.Lock())
            elif KIND == "file-lock":
                files = [Path("lock").open("w"), Path("lock").open("w")]  # noqa: SIM115
                for file in files:
                    fcntl.flock(file, fcntl.LOCK_EX)
            elif KIND == "interpreter":
                re.match("(a+)+$", 50 * "a" + "b")
            elif KIND == "download":
                server = socket.create_server(("127.0.0.1", 0))
                socket.create_connection(server.getsockname()).recv(1)
        if step == AT_STEP and KIND == "group":
            torch.distributed.all_reduce(torch.ones(4, device=device), group=None if RANK == LAST else other)
        if step == AT_STEP and KIND == "operation":
            if RANK == LAST:
                torch.distributed.barrier()
            else:
                torch.distributed.all_reduce(torch.ones(4, device=device))
        if step == AT_STEP and KIND == "shapes":
            size = 4 * HIDDEN**2 if ON_GPU else 4
            torch.distributed.all_reduce(torch.ones(2 * size if RANK == LAST else size, device=device))
        if KIND == "evaluate" and step == AT_STEP and RANK == 0:
            with torch.no_grad():
                engine.eval()
                engine(batch, True)
                engine.train()
        if KIND == "network" and step == AT_STEP:
            torch.distributed.barrier()
            subprocess.run(["ip", "link", "set", "lo", "down"], check=RANK == 0)
        loss = engine(batch, not (KIND == "module" and odd), 1 if KIND == "expert" and odd else 2)
        engine.backward(loss)
        engine.step()
        if RANK == 0:
            print("step", engine.global_steps, flush=True)
        if step == AT_STEP and KIND == "save" and RANK == 0:
            engine.save_checkpoint("ckpt")
        if step == 2 * AT_STEP:
            break
    if KIND == "save-last" and RANK == 0:
        engine.save_checkpoint("ckpt")
    del halves
    if KIND in ("uneven", "save-last") and RANK == LAST and not sys.argv[-1].endswith("-gone"):
        # An upload keeps the process; without it Gloo fails at once, and nothing hangs.
        threading.Thread(target=time.sleep, args=(100_000,), name="uploader").start()


if __name__ == "__main__":
    main()
