"""Tries to leave something behind in every way, in the working folder: ``attack(victim_pid)``. All of it must
be gone afterwards. What the whole machine sees has the victim's number in its name."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

_SHM_KEY, _SEM_KEY, _CREATE = 0x7A6B0001, 0x7A6B0002, 0o1666


def _write(path: str) -> None:
    Path(path).write_text("left")


def _daemon(name: str) -> None:
    """One that closes all it has, and lives on in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            os.execv("/bin/sleep", ["sleep", name])
        os._exit(0)


def _knock(family: int, address: object) -> None:
    with socket.socket(family) as door:
        door.settimeout(1)
        door.connect(address)
        door.sendall(b"left")


def attack(victim: int) -> None:
    """All of it, each as far as it goes."""
    libc, home = ctypes.CDLL(None), str(Path.home())
    paths = ["left", "mounted/left", "mounted/kept", "kept", f"{home}/left", "/left", "/tmp/left",
             "/etc/left", "/run/left", "/dev/left", "/dev/shm/left", "/dev/mqueue/left",
             "/sys/fs/cgroup/left", "/proc/sys/vm/swappiness", f"/proc/{os.getppid()}/cwd/left",
             "/proc/1/root/left", "/proc/1/oom_score_adj"]  # fmt: skip
    attempts: list[Callable[[], object]] = [
        *(lambda path=path: _write(path) for path in paths),
        lambda: shutil.rmtree("mounted"),
        lambda: shutil.rmtree("folder"),
        lambda: Path("folder/kept").unlink(),
        lambda: Path("kept").chmod(0o777),
        lambda: Path("kept").rename("moved"),
        lambda: Path("/sys/fs/cgroup/left").mkdir(),
        lambda: os.mknod("device", 0o600 | 0o060000, os.makedev(254, 0)),
        lambda: os.write(os.open("pipe", os.O_WRONLY | os.O_NONBLOCK), b"left"),
        lambda: libc.shmget(_SHM_KEY, 4096, _CREATE),
        lambda: libc.semget(_SEM_KEY, 1, _CREATE),
        lambda: shared_memory.SharedMemory("left-shm", create=True, size=4096),
        lambda: os.kill(victim, signal.SIGKILL),
        lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
        lambda: _knock(socket.AF_UNIX, f"\0left-behind-{victim}"),
        lambda: _knock(socket.AF_UNIX, "mounted/door"),
        lambda: _knock(socket.AF_UNIX, "door"),
        lambda: subprocess.run(["umount", "-l", "mounted"], check=False, capture_output=True),
        lambda: socket.sethostname("left"),
        lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
        lambda: _daemon(f"98765{victim}"),
        lambda: subprocess.Popen(["sleep", f"98765{victim}"], start_new_session=True),
        lambda: subprocess.Popen(["sh", "-c", "sleep 1; echo left > late"]),
    ]
    for attempt in attempts:
        with contextlib.suppress(OSError):
            attempt()


if __name__ == "__main__":
    import torch

    weight = torch.zeros(8, 8, device="cuda", requires_grad=True)
    attack(int(sys.argv[1]))
    weight.square().sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
