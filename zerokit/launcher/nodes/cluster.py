"""Ranks on other machines: ending them for certain, and starting them under Slurm.

DeepSpeed's pdsh runner ends remote ranks with one ``pkill`` that a stubborn rank ignores, and not at all
when it is killed itself. srun kills a step's tasks at once when it is told to end, and where Slurm tracks
processes by group (``proctrack/pgid``) not the ranks that torchrun put into sessions of their own. So
zerokit looks for them itself, over ssh or in a step beside the run's: every process with this run's
``ZEROKIT_RUN_DIR`` in its environment, or its ``ZEROKIT_RUN_ID``, which DeepSpeed's own processes have there.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError, NodeUnusable, about
from zerokit.linter.hostfile import Host, load_hostfile
from zerokit.units import counted

SWEEP_SECONDS = 8.0
MOST_AT_ONCE = 64

# Runs there; its own environment holds no run folder, so it never finds itself. Prints how many it met.
_SWEEP = """
import os, sys
names = {b"ZEROKIT_RUN_DIR=" + os.fsencode(sys.argv[1]), b"ZEROKIT_RUN_ID=" + sys.argv[3].encode()}
number, met = int(sys.argv[2]), 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            with open("/proc/" + name + "/environ", "rb") as file:
                mine = not names.isdisjoint(file.read().split(b"\\0"))
            if mine:
                os.kill(int(name), number)
                met += 1
        except OSError:
            pass
print(os.environ.get("SLURMD_NODENAME", "-"), met)
"""


def ssh_command(host: str, seconds: float, *remote: str) -> list[str]:
    """An ssh that never asks, never waits longer, and never takes the host for an option."""
    program = shutil.which("ssh")
    if program is None:
        raise NodeUnusable("ssh is not installed here, and other machines are reached by it")
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(seconds) - 1)}",
               "-o", "StrictHostKeyChecking=accept-new"]  # fmt: skip
    return [program, *options, "--", host, *map(shlex.quote, remote)]  # ssh goes through a shell there


def ask(
    hosts: Sequence[str], seconds: float, script: str, *words: object
) -> list[subprocess.CompletedProcess[str] | Exception]:
    """What a script of Python said on each host, side by side; why it could not be asked there."""
    remote = (sys.executable, "-I", "-", *map(str, words))

    def one(host: str) -> subprocess.CompletedProcess[str] | Exception:
        try:
            return subprocess.run(ssh_command(host, seconds, *remote), input=script, capture_output=True,
                                  text=True, timeout=seconds, check=False)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, NodeUnusable) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(max_workers=MOST_AT_ONCE) as pool:
        return list(pool.map(one, hosts))


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of its errors, or its exit code."""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]


def run_id(run_dir: str) -> str:
    """The run folder's path in characters that every shell leaves alone."""
    return hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:32]


def sweep(hosts: list[str], run_dir: str, number: int, slurm_job: str | None = None) -> dict[str, int | None]:
    """Send a signal to every process of the run on each host, or node of the Slurm job, side by side. Returns
    per host how many were met; None where the host did not answer."""
    if slurm_job is not None:
        return _sweep_nodes(slurm_job, hosts, run_dir, number)

    met: dict[str, int | None] = dict.fromkeys(hosts)
    answers = ask(hosts, SWEEP_SECONDS, _SWEEP, run_dir, number, run_id(run_dir))
    for host, done in zip(hosts, answers, strict=True):
        if not isinstance(done, Exception):
            with suppress(ValueError, IndexError):
                met[host] = int(done.stdout.split()[-1])
    return met


def _sweep_nodes(job: str, nodes: list[str], run_dir: str, number: int) -> dict[str, int | None]:
    """A step of its own beside the run's (``--overlap``: Slurm 20.11 or later), one task a node."""
    count = len(nodes)
    command = ["srun", f"--jobid={job}", "--overlap", "--quiet", "--input=none", f"--nodes={count}",
               f"--ntasks={count}", "--ntasks-per-node=1", sys.executable, "-I", "-c", _SWEEP]  # fmt: skip
    try:
        done = subprocess.run([*command, run_dir, str(number), run_id(run_dir)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SWEEP_SECONDS, check=False)  # fmt: skip
        lines = [line.split() for line in done.stdout.splitlines()]
    except (OSError, subprocess.TimeoutExpired):
        lines = []
    exit_codes = {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2 and fields[1].isdigit()}
    return {node: exit_codes.get(node) for node in nodes}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """The allocation we run in: the job's id and its nodes' names."""

    job_id: str
    nodes: tuple[str, ...]


def slurm_job(environment: Mapping[str, str] | None = None) -> SlurmJob | None:
    """The Slurm allocation of several nodes that this process is the batch script of; None outside one.
    Raises NodeUnusable: Slurm does not say which nodes they are."""
    environment = os.environ if environment is None else environment
    job_id, names = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    if not job_id or not names or not job_id.isdigit() or environment.get("SLURM_STEP_NODELIST"):
        return None
    if environment.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return None
    program = shutil.which("scontrol")
    if program is None or shutil.which("srun") is None:
        raise NodeUnusable("this is a Slurm job of several nodes, but srun or scontrol is not on the PATH")
    done = subprocess.run(
        [program, "show", "hostnames", names], capture_output=True, text=True, timeout=20, check=False
    )
    nodes = tuple(done.stdout.split())
    if done.returncode != 0 or not nodes:
        raise NodeUnusable(f"scontrol show hostnames {names}: {done.stderr.strip() or 'no answer'}")
    return SlurmJob(job_id=job_id, nodes=nodes)


__all__ = ["Host", "choose_hosts", "read_hostfile"]


def read_hostfile(path: str | Path) -> list[Host]:
    """Read ``NAME slots=N`` lines; ``#`` starts a comment. Raises InputError: no such file, or not a regular
    one. FileInputError: a line that is not a host with slots, a duplicate, or no host at all."""
    path = Path(path)
    if not path.is_file():
        fault = "is not a file" if path.exists() else "does not exist"
        raise InputError(
            f"⟨hostfile⟩ {path}: {fault}; nothing was started (zerokit never falls back to this machine)"
        )
    with about("hostfile"):
        return load_hostfile(str(path))


def choose_hosts(hosts: list[Host], nodes: int | None) -> list[Host]:
    """The first ``nodes`` hosts, or all. Raises InputError: more nodes than hosts."""
    if nodes is None:
        return hosts
    if nodes > len(hosts):
        raise InputError(f"⟨nodes⟩ {nodes}: the hostfile names {counted(len(hosts), 'host')}")
    return hosts[:nodes]
