"""What happens first in a rank: it becomes what one word says that no shell changes, goes to its working
folder, takes its share of the cores, and puts its output into pipes of its own. Standard library only.

DeepSpeed's pdsh runner writes arguments, exports and the working folder into one line for the remote
shell, and puts at most double quotes round them (deepspeed/launcher/multinode_runner.py:43, 87, 126 of
0.19.8): ``$(…)`` runs there, and ``it's`` ends the line. So a launch on other machines hands each rank one
argument in base64url, and the rank becomes what it says before anything else happens.

The launcher gives every rank its own standard streams, so their lines would mix. zerokit makes
``rank-00000.out`` and ``.err`` as FIFOs in a private folder (``ZEROKIT_STDIO_DIR``), and each rank on this
machine puts its streams there. OpenMP reads its threads once: they are set before torch is imported.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

OPTION = "--packed="
LONGEST = 96_000
"""Characters of the packed word: Linux gives one argument 128 KiB, and the remote shell's line is one."""
PATTERN = re.compile(rb"--packed=[A-Za-z0-9_=-]+")
SHOWN = "--packed=<arguments and environment>"
"""What is shown and written instead of the word, which may hold a secret."""


def pack(arguments: list[str], environment: Mapping[str, str | None]) -> str:
    """The word for the bootstrap's arguments; ``environment``: variables to set, or None to unset."""
    text = json.dumps([arguments, dict(environment)], separators=(",", ":"))
    return OPTION + base64.urlsafe_b64encode(text.encode("ascii")).decode("ascii")


def unpack(word: str) -> tuple[list[str], dict[str, str | None]]:
    """What :func:`pack` was given."""
    arguments, environment = json.loads(base64.urlsafe_b64decode(word.removeprefix(OPTION)))
    return arguments, environment


def become(bootstrap: str, argv: list[str]) -> None:
    """Replace this process by the one that a packed word among ``argv`` describes; returns without one. What
    stands before it (DeepSpeed's ``--local_rank``) stays before the arguments."""
    at = next((i for i, word in enumerate(argv[:4]) if word.startswith(OPTION)), None)
    if at is None:
        return
    arguments, changes = unpack(argv[at])
    environment = dict(os.environ)
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    command = [sys.executable, "-u", bootstrap, *argv[:at], *arguments]  # -u: as DeepSpeed starts ranks
    os.execve(command[0], command, environment)


WORKING_FOLDER = "ZEROKIT_CWD"
PYTHON_PATH = "ZEROKIT_PYTHONPATH"
LAUNCHER_FOLDER = "/"
"""Where launchers are started: it is on every machine, and nobody but root puts a torch.py there."""


def enter_working_folder() -> None:
    """Go where the user started the launch, and see modules where they would without a launcher.

    Accelerate puts the folder that it was started in into PYTHONPATH (accelerate/utils/launch.py:557 of
    1.15), DeepSpeed's pdsh runner too.

    Raises:
        SystemExit: this machine has no such folder.
    """
    folder = os.environ.get(WORKING_FOLDER)
    if not folder:
        return
    try:
        os.chdir(folder)
    except OSError as error:
        raise SystemExit(
            f"zerokit: {os.uname().nodename}: the working folder {folder} cannot be entered here: "
            f"{error.strerror}"
        ) from None
    path = os.environ.get(PYTHON_PATH)
    if path is None or os.environ.get("PYTHONPATH", "") == path:
        return
    if LAUNCHER_FOLDER not in path.split(os.pathsep) and LAUNCHER_FOLDER in sys.path:
        sys.path.remove(LAUNCHER_FOLDER)
    os.environ["PYTHONPATH"] = path
    if not path:
        del os.environ["PYTHONPATH"]


# ---- its cores

THREADS_VARIABLE = "OMP_NUM_THREADS"
SHARE_VARIABLE = "ZEROKIT_SHARE_CORES"
"""Set for ranks on other machines: each takes its share of the cores there."""
# how many ranks the machine has: of torchrun, and of DeepSpeed (launcher/launch.py:182 of 0.19.8)
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")


def cores_per_rank(ranks: int) -> int:
    """Cores of this machine (as this process may use them) for each of its ranks."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, int(min(cores, quota or cores)) // ranks)


def take_share(environment: MutableMapping[str, str] | None = None) -> None:
    """Set this rank's threads, if the launch left that to the ranks; over what the launcher set."""
    environment = os.environ if environment is None else environment
    if not environment.get(SHARE_VARIABLE):
        return
    counts = [environment[name] for name in _RANKS_HERE if environment.get(name, "").isdigit()]
    if counts:
        environment[THREADS_VARIABLE] = str(cores_per_rank(max(1, int(counts[0]))))


def _cgroup_cores() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


# ---- its output

PIPES_VARIABLE = "ZEROKIT_STDIO_DIR"


def pipe(folder: Path, rank: int, stream: str) -> Path:
    """The pipe that takes a rank's ``out`` or ``err``."""
    return folder / f"rank-{rank:05d}.{stream}"


def make_pipes(folder: Path, ranks: int) -> dict[tuple[int, str], int]:
    """Make the FIFOs of all ranks; returns the reading end by ``(rank, "out"|"err")``.

    The reading end is opened for writing too, so that it never reaches end of file while a
    rank has not opened it yet, or has closed it.
    """
    readers = {}
    for rank in range(ranks):
        for stream in ("out", "err"):
            path = pipe(folder, rank, stream)
            os.mkfifo(path, 0o600)
            readers[rank, stream] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    return readers


def attach_pipes(rank: int) -> bool:
    """Point this process's standard streams at its own pipes; False where there are none."""
    folder = os.environ.get(PIPES_VARIABLE)
    if not folder:
        return False
    with suppress(OSError):
        opened = []
        for target, stream in ((1, "out"), (2, "err")):
            path = pipe(Path(folder), rank, stream)
            if not stat.S_ISFIFO(path.stat().st_mode):
                return False
            # Not blocking on opening: without a reader (zerokit gone) that would wait for ever.
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(fd, True)
            opened.append((fd, target))
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                file.flush()
        for fd, target in opened:
            os.dup2(fd, target)
            os.close(fd)
        return True
    return False
