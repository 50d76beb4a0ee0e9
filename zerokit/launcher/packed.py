"""A rank's command line, environment and working folder as one word that no shell changes.

DeepSpeed's pdsh runner writes arguments, exports and the working folder into one line for the remote
shell, and puts at most double quotes round them (deepspeed/launcher/multinode_runner.py:43, 87, 126 of
0.19.8): ``$(…)`` runs there, and ``it's`` ends the line. So a launch on other machines hands each rank one
argument in base64url, and the rank becomes what it says before anything else happens.
Standard library only: it runs first in every remote rank.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Mapping

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
    """Replace this process by the one that a packed word among ``argv`` describes; returns without one.

    What stands before it (DeepSpeed's ``--local_rank``) stays before the arguments.
    """
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


def absolute_python_path(text: str, folder: str) -> str:
    """PYTHONPATH with absolute entries, as Python in ``folder`` reads it: an empty entry is the folder."""
    join = os.path.join
    return os.pathsep.join(join(folder, entry) if entry else folder for entry in text.split(os.pathsep))
