"""The program of benchmarks.random_faults: works for a while, and leaves a word of its own at the end.

``random_faults_program.py KIND SECONDS [PHASE]``. A rank that came to its end in its own way writes
``done-RANK``: what zerokit says of the run is held against these. ``there-RANK``: it is where the fault is to
strike.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

RANK = int(os.environ["RANK"])


def tell(what: str) -> None:
    """Write ``what-RANK`` into the folder that the run was started in."""
    with open(f"{what}-{RANK}", "w") as file:  # noqa: PTH123
        file.write(str(os.getpid()))


def work(seconds: float) -> Iterator[int]:
    """Does something new at every look; yields some hundred times a second."""
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline:
        sum(range(random.randrange(3000)))
        time.sleep(0.004)
        yield number
        number += 1


def plain(seconds: float) -> None:
    for _ in work(seconds):
        pass


def noisy(seconds: float) -> None:
    for number in work(seconds):
        os.write(1, f"line {number} of rank {RANK}\n".encode() * 50)


def long(seconds: float) -> None:
    """One line of 75 MB."""
    for _ in work(seconds / 2):
        pass
    sys.stdout.write("loss 0.1, tokens 12; " * (75_000_000 // 21) + "\n")
    sys.stdout.flush()


def raises(seconds: float) -> None:
    """An exception whose text has 50 MB."""
    for _ in work(seconds):
        pass
    raise RuntimeError("shape [1, 2] " * (50_000_000 // 13))


def lockstep(seconds: float) -> None:
    """Each step waits for the other rank, as a collective does."""
    address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        peer, _ = socket.create_server(("", address[1])).accept()
    else:
        for _ in work(60):
            try:
                peer = socket.create_connection(address, 5)
                break
            except OSError:
                time.sleep(0.05)
    peer.settimeout(None)
    for number in range(int(seconds / 0.05)):
        peer.sendall(b".")
        if peer.recv(1) != b".":
            raise ConnectionError(f"the peer left in step {number}")
        plain(0.05)


def saves(seconds: float) -> None:
    """Told to end, it saves, which takes a while, and leaves with 0."""

    def save(*_: object) -> None:
        plain(0.3)
        tell("done")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    plain(seconds)


def deaf(seconds: float) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    plain(seconds)


def workers(seconds: float) -> None:
    """Shared memory, a pool, a child in a session of its own and a daemon: what data loaders leave behind."""
    memory = shared_memory.SharedMemory(create=True, size=1 << 16)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, range(10))
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        plain(seconds)
    memory.close()
    memory.unlink()


def train(seconds: float, phase: str) -> None:
    """Real DeepSpeed, ZeRO-2, gloo: stays for a while in one phase."""

    def linger(where: str) -> None:
        if where == phase:
            tell("there")
            plain(seconds)

    linger("load")
    import deepspeed
    import torch

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and engine.global_steps == 1:
                linger("forward")
            return super().forward(x).square().mean()

    model = Model(16, 16)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    }
    deepspeed.init_distributed(dist_backend="gloo")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    linger("init")
    for number in range(4):
        loss = engine(torch.ones(1, 16))
        if number == 1:
            loss.register_hook(lambda gradient: linger("backward"))
        engine.backward(loss)
        engine.step()
        if number == 1:
            linger("step")
    engine.save_checkpoint("checkpoint")
    linger("save")


if __name__ == "__main__":
    kind, duration = sys.argv[1], float(sys.argv[2])
    if kind == "workers":  # one that is killed before its tracker runs leaves its memory to nobody
        resource_tracker.ensure_running()
    Path(f"began-{RANK}").touch()
    if kind == "train":
        train(duration, sys.argv[3])
    else:
        globals()[kind](duration)
    tell("done")
