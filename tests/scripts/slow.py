"""ZeRO-1 on two CPU ranks, healthy and slow: after two steps rank 0 does what the arguments name."""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

SECONDS = 7.0
SPIN = "import time\nend = time.monotonic() + %g\nwhile time.monotonic() < end: sum(range(10000))"


def spin(seconds: float) -> float:
    """Work of a process; returns what it took."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))
    return seconds


class Costly(torch.utils.data.Dataset):
    """One item that takes its time."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        return spin(SECONDS)


def compile_operator() -> None:
    subprocess.run([sys.executable, "-c", SPIN % SECONDS], check=True)


def compile_in_many_short_processes() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        subprocess.run([sys.executable, "-c", SPIN % 0.3], check=True)


def tokenize_in_a_pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(spin, [SECONDS])


def load_data() -> None:
    next(iter(torch.utils.data.DataLoader(Costly(), num_workers=1)))


def last_for_seconds(call: Callable[[int], object], size: int) -> None:
    """One call that takes about ``SECONDS``; again with a larger size where the machine became faster."""
    took = 0.0
    while took < SECONDS - 1.5:
        began = time.monotonic()
        call(size)
        took = time.monotonic() - began
        size = int(size * SECONDS / took)


def one_long_call() -> None:
    last_for_seconds(lambda rounds: hashlib.pbkdf2_hmac("sha256", b"x", b"y", rounds), 200_000)


def hold_the_interpreter() -> None:
    last_for_seconds(lambda numbers: sum(range(numbers)), 10**7)


def save_to_slow_storage() -> None:
    reader, writer = os.pipe()

    def store() -> None:
        while os.read(reader, 1 << 16):
            time.sleep(0.1)

    threading.Thread(target=store, daemon=True).start()
    with os.fdopen(writer, "wb") as file:
        for _ in range(int(SECONDS * 10)):
            file.write(bytes(1 << 16))


def download() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        for _ in range(int(SECONDS * 5)):
            connection.sendall(bytes(1 << 14))
            time.sleep(0.2)
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    client = socket.create_connection(server.getsockname())
    while client.recv(1 << 14):
        pass


def read_mapped() -> None:
    path = Path("weights")
    path.write_bytes(bytes(64 << 20))
    end = time.monotonic() + SECONDS
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        while time.monotonic() < end:
            hashlib.sha256(pages).digest()


def evaluate() -> None:
    model, end = torch.nn.Linear(512, 512), time.monotonic() + SECONDS
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.ones(256, 512))


def generate() -> None:
    tokens, end = torch.ones(1, 1), time.monotonic() + SECONDS
    while time.monotonic() < end:
        tokens = torch.cat([tokens, tokens[:, -1:]], dim=1)


def compare_large_matrices() -> None:
    torch.linalg.svd(torch.randn(900, 900))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        torch.linalg.svd(torch.randn(900, 900))


def sleep_in_a_callback() -> None:
    for _ in range(3):
        time.sleep(2.5)
        spin(0.9)


def walk_many_files() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        list(Path("/usr/lib").iterdir())


def wait_for_a_writing_child() -> None:
    command = "for i in $(seq 14); do head -c 3000000 /dev/zero > moved; sleep 0.5; done"
    subprocess.run(["sh", "-c", command], check=True)


DEEDS: list[Callable[[], None]] = [
    compile_operator, load_data, one_long_call, compile_in_many_short_processes, tokenize_in_a_pool,
    hold_the_interpreter, save_to_slow_storage, download, read_mapped, evaluate, generate,
    compare_large_matrices, sleep_in_a_callback, walk_many_files, wait_for_a_writing_child,
]  # fmt: skip


def main() -> None:
    import deepspeed

    chosen = [deed for deed in DEEDS if deed.__name__ in sys.argv[1:]]
    deepspeed.init_distributed(dist_backend="gloo")
    rank = int(os.environ["RANK"])
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    model = torch.nn.Linear(8, 8)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for deed in [None, None, *chosen, None]:
        if deed is not None and rank == 0:
            began = time.monotonic()
            deed()
            print(f"{deed.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        engine.backward(engine(torch.randn(2, 8)).square().mean())
        engine.step()


if __name__ == "__main__":
    main()
