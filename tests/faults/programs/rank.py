"""A training script without torch: what it does on which rank is said by ``RANK:DEED`` arguments."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

RANK = int(os.environ["RANK"])

PLACES = (
    lambda: time.sleep(0.010),
    lambda: time.sleep(0.004),
    lambda: sum(range(2000)),
    lambda: time.sleep(0.006),
    lambda: time.sleep(0.003),
    lambda: sum(range(3000)),
    lambda: time.sleep(0.005),
    lambda: time.sleep(0.008),
)


def spin(seconds: float) -> None:
    """Work: the main thread is somewhere else at every look."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        random.choice(PLACES)()


def child(new_session: bool) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=new_session)
    spin(600)


def daemon() -> None:
    """A double fork: the child's parent is gone at once."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    spin(600)


def together() -> None:
    """What a collective does: every step waits for the peer (two ranks)."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        peer, _ = socket.create_server(("", address[1])).accept()
    else:
        deadline = time.monotonic() + 120
        while True:
            try:
                peer = socket.create_connection(address, 5)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    peer.settimeout(None)
    for _ in range(100_000):
        peer.sendall(b".")
        peer.recv(1)
        spin(0.05)


def shares() -> None:
    """Has a block of shared memory, as data loaders do; its name is told in a file."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    Path(f"shared-{RANK}").write_text(memory.name)
    spin(600)


def stubborn() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    spin(600)


def without_main_thread() -> None:
    """Another thread, deaf to SIGTERM, outlives the main one: the process shows as a zombie."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=spin, args=(600,)).start()
    time.sleep(2)
    ctypes.CDLL(None).pthread_exit(None)


def slow_to_end() -> None:
    """Saves for half a second when told to end."""

    def save(*_: object) -> None:
        time.sleep(0.5)
        Path(f"saved-{RANK}").write_text("whole")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    spin(600)


def noisy() -> None:
    for number in range(200_000):
        # one write a line: longer ones of two ranks would mingle in the pipe that they share
        os.write(1, f"line {number} of rank {RANK} with some text to make it longer\n".encode())


def unreported() -> None:
    """Ends well for the launcher, and leaves no word."""
    (Path(os.environ["ZEROKIT_RUN_DIR"]) / f"rank-{RANK:05d}.jsonl").unlink()
    os.execv(sys.executable, [sys.executable, "-c", "pass"])


def arguments() -> None:
    Path(f"argv-{RANK}").write_text(ascii(sys.argv))
    names = ("NCCL_DEBUG_SUBSYS", "MLFLOW_RUN", "PYTHONPATH")
    Path(f"environment-{RANK}").write_text("|".join(str(os.environ.get(name)) for name in names))


def tells() -> None:
    """Says all that it was given, and fails with it."""
    print(sys.argv, os.environ["MYSQL_PWD"], os.environ["DATABASE_URL"])
    print("token:", sys.argv[-2], flush=True, file=sys.stderr)
    raise RuntimeError(f"{sys.argv} {os.environ['MYSQL_PWD']} {os.environ['DATABASE_URL']}")


DEEDS = {
    "work": lambda: spin(600),
    "together": together,
    "short": lambda: spin(1.0),
    "sleep": lambda: time.sleep(600),
    "blocked": lambda: os.read(os.pipe()[0], 1),
    "fail": lambda: (spin(0.5), sys.exit(7)),
    "raise": lambda: (_ for _ in ()).throw(ValueError("the learning rate is a lemon")),
    "memory": lambda: bytearray(1 << 60),
    "os_exit": lambda: os._exit(0),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "child": lambda: child(False),
    "session": lambda: child(True),
    "daemon": daemon,
    "shares": shares,
    "stubborn": stubborn,
    "headless": without_main_thread,
    "saves": slow_to_end,
    "noisy": noisy,
    "secret": lambda: print("token", os.environ["HF_TOKEN"], file=sys.stderr),
    "arguments": arguments,
    "tells": tells,
    "unreported": unreported,
    "done": lambda: None,
}

if __name__ == "__main__":
    deeds = dict(part.split(":", 1) for part in sys.argv[1:] if part.partition(":")[2] in DEEDS)
    DEEDS[deeds.get(str(RANK), deeds.get("all", "done"))]()
