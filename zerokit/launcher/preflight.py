"""Is everything there that the run needs? Checked before anything is started."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.errors import INSTALL_TRAINING, InputError, NodeUnusable
from zerokit.launcher.backends import Backend
from zerokit.launcher.nodes.cluster import MOST_AT_ONCE, Host, ask, last_words
from zerokit.machine import supported
from zerokit.machine.versions import installed
from zerokit.units import counted

NODES_SECONDS = 9.0  # for all nodes together
_PACKAGES = ("torch", "deepspeed", "accelerate", "transformers")

# Runs on the other machine with its own Python; prints one JSON line.
_PROBE = (
    "import json,sys,shutil,subprocess,importlib.metadata as m\n"
    "v={}\n"
    f"for n in {_PACKAGES!r}:\n"
    "  try: v[n]=m.version(n)\n"
    "  except Exception: pass\n"
    "g=0\n"
    "if shutil.which('nvidia-smi'):\n"
    "  g=len(subprocess.run(['nvidia-smi','-L'],capture_output=True,text=True).stdout.splitlines())\n"
    "import socket\n"
    "p=int(sys.argv[1]); f=True\n"
    "try:\n"
    "  s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('',p)); s.close()\n"
    "except OSError: f=False\n"
    "import os\n"
    "h=os.path.exists(sys.argv[2]) if len(sys.argv)>2 else True\n"
    "print(json.dumps({'python':list(sys.version_info[:2]),'versions':v,'gpus':g,'port_free':f,'shared':h}))\n"
)


_OWN_OPEN_FILES, _OPEN_FILES_OF_RANK = 40, 5  # of a rank: two pipes, two logs, its record


def check_packages(backend: Backend, *, engine: str = "deepspeed") -> None:
    """Whether the launcher and what it needs for the ``engine`` are installed beside this Python. Raises
    InputError: something is missing; names the command that installs it."""
    required = (name for name in backend.packages if name != "deepspeed" or engine == "deepspeed")
    missing = [name for name in required if installed(name) is None]
    if missing:
        raise InputError(
            f"⟨launcher⟩ {backend.name}: {' and '.join(missing)} not installed for {sys.executable}; "
            f"{INSTALL_TRAINING}"
        )


def check_open_files(local_ranks: int) -> None:
    """Whether this process may open the pipes, logs and record of each rank; the soft limit is raised if not.
    Raises NodeUnusable: the hard limit is lower, too."""
    required = _OWN_OPEN_FILES + _OPEN_FILES_OF_RANK * local_ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= required:
        return
    if hard != resource.RLIM_INFINITY and hard < required:
        raise NodeUnusable(
            f"at most {hard} files may be open here, and {counted(local_ranks, 'rank')} require {required}: "
            f"raise the limit (ulimit -n {required})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (required, hard))


def check_versions(backend: Backend, style: str, *, engine: str = "deepspeed") -> None:
    """Whether the versions of what this launch uses are supported. Raises InputError: names the installed
    version, those that are supported, and the command that installs one."""
    used = {backend.name} | ({engine} & {"deepspeed"} if style != "none" else set())
    used |= {"accelerate"} if style in ("accelerate", "trainer") else set()
    if (problem := supported.refusal(*used)) is not None:
        raise InputError(problem)


def check_stage_on_cpu(config: Mapping[str, Any], ranks: int) -> None:
    """Whether the installed DeepSpeed can train at this stage on CPU ranks. Raises InputError: it cannot;
    names the versions that can."""
    zero = config.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else 0
    if isinstance(stage, int) and (problem := supported.cpu_refusal(stage, ranks)) is not None:
        raise InputError(problem)


def check_nodes(
    hosts: list[Host], *, need_gpus: bool, port: int = 0, token: Path | None = None
) -> tuple[str, ...]:
    """Ask all nodes side by side, within ten seconds whatever their number; returns those that do not see
    ``token``, a file of the run folder.

    Raises:
        NodeUnusable: one does not answer, has other versions than this machine, or too few GPUs, or the first
            has no free ``port`` (0: any is); the message lists every such node.
    """
    began = time.monotonic()
    rounds = -(-len(hosts) // MOST_AT_ONCE)
    words = [port, *([] if token is None else [token])]
    answers = ask([host.name for host in hosts], NODES_SECONDS / rounds, _PROBE, *words)
    problems, unshared = [], []
    for host, done in zip(hosts, answers, strict=True):
        answer: dict[str, Any] = {}
        if isinstance(done, subprocess.TimeoutExpired):
            problem: str | None = f"no answer within {done.timeout:.0f} s"
        elif isinstance(done, OSError):
            problem = f"ssh: {done.strerror}"
        elif isinstance(done, Exception):
            problem = str(done)
        else:
            try:
                answer = json.loads(done.stdout.strip().splitlines()[-1])
                problem = _differences(host, answer, need_gpus=need_gpus)
            except (IndexError, ValueError, KeyError, TypeError, AttributeError):
                problem = last_words(done)
        if problem is None and host is hosts[0] and not answer["port_free"]:
            problem = f"port {port}, where the ranks are to meet, is in use; choose another ⟨master_port⟩"
        if problem:
            problems.append(f"{host.name} (hostfile line {host.line}): {problem}")
        elif not answer["shared"]:
            unshared.append(host.name)
    if problems:
        took = time.monotonic() - began
        raise NodeUnusable(
            f"{len(problems)} of {counted(len(hosts), 'node')} cannot be used (checked in {took:.1f} s):\n  "
            + "\n  ".join(problems)
        )
    return tuple(unshared)


def _differences(host: Host, answer: Mapping[str, Any], *, need_gpus: bool) -> str | None:
    python, here = tuple(answer["python"]), sys.version_info[:2]
    if python != here:
        return f"Python {python}, here {here}"
    for package in _PACKAGES:
        local, remote = installed(package), answer["versions"].get(package)
        if local is not None and remote != local:
            return f"{package} {remote or 'is not installed'}, here {local}"
    if need_gpus and answer["gpus"] < host.slots:
        return f"{counted(answer['gpus'], 'GPU')}, the hostfile gives it {counted(host.slots, 'slot')}"
    return None
