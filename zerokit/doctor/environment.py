"""Variables and files that change what NCCL, torch or DeepSpeed do unasked: a table, one row each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from zerokit.doctor.finding import DoctorFinding, Surroundings, note, ok, warning
from zerokit.errors import InputError
from zerokit.launcher.nodes.cluster import read_hostfile
from zerokit.machine import architectures
from zerokit.units import counted, few


class Oddity(NamedTuple):
    """A variable worth a remark where its whole value matches the pattern."""

    name: str
    value: str
    what: str
    fix: str
    state: str = "warning"


_UNSET = "unset it"
_UNLESS_MEANT = "unset it, unless meant"
_ALLOCATOR = ("changes how much memory is reserved beyond what is allocated",
              "plans assume what they print under `environment`", "note")  # fmt: skip
_MEET = ("set in this shell: ranks will meet there", _UNLESS_MEANT, "note")
_ANY = ".+"
ODDITIES = (
    Oddity("NCCL_P2P_DISABLE", "1", "GPUs exchange through host memory, many times slower", _UNSET),
    Oddity("NCCL_P2P_LEVEL", "LOC|0", "GPUs exchange through host memory", _UNSET),
    Oddity("NCCL_IB_DISABLE", "1", "nodes talk over plain sockets, not InfiniBand", _UNSET),
    Oddity("NCCL_SHM_DISABLE", "1", "ranks of a node without peer access use sockets", _UNSET),
    Oddity("NCCL_NET_GDR_LEVEL", "LOC|0", "network traffic is copied through the host", _UNSET),
    Oddity("NCCL_ALGO", _ANY, "NCCL may not choose its algorithm", _UNSET, "note"),
    Oddity("NCCL_PROTO", _ANY, "NCCL may not choose its protocol", _UNSET, "note"),
    Oddity("NCCL_DEBUG", "TRACE|INFO", "NCCL writes much into the log", "set it to WARN", "note"),
    Oddity("NCCL_BLOCKING_WAIT", _ANY, "an old name, which torch reads with a warning",
           "use TORCH_NCCL_BLOCKING_WAIT", "note"),
    Oddity("NCCL_ASYNC_ERROR_HANDLING", _ANY, "an old name, which torch reads with a warning",
           "use TORCH_NCCL_ASYNC_ERROR_HANDLING", "note"),
    Oddity("TORCH_NCCL_BLOCKING_WAIT", "1", "every collective blocks the host: slow", _UNSET),
    Oddity("CUDA_LAUNCH_BLOCKING", "1", "every kernel waits for the one before: slow", _UNSET),
    Oddity("CUDA_VISIBLE_DEVICES", ".*(GPU|MIG)-.*", "plain `deepspeed` crashes on UUIDs",
           "use `zerokit launch`, which resolves them, or indices"),
    Oddity("RANK", _ANY, "set in this shell: without a launcher a script takes itself for it", _UNSET),
    Oddity("WORLD_SIZE", _ANY, "set in this shell: without a launcher a script waits for the others", _UNSET),
    Oddity("LOCAL_RANK", _ANY, "set in this shell: without a launcher a script uses that GPU", _UNSET),
    Oddity("MASTER_ADDR", _ANY, *_MEET),
    Oddity("MASTER_PORT", _ANY, *_MEET),
    Oddity("ACCELERATE_USE_DEEPSPEED", _ANY, "every accelerate script in this shell uses DeepSpeed", _UNSET),
    Oddity("ACCELERATE_DEEPSPEED_CONFIG_FILE", _ANY, "every accelerate script in this shell uses that file",
           _UNSET),
    Oddity("DS_ACCELERATOR", _ANY, "DeepSpeed takes this accelerator instead of looking", _UNLESS_MEANT,
           "note"),
    Oddity("DS_SKIP_CUDA_CHECK", "1", "operators are compiled with a toolkit that may not fit torch's",
           _UNLESS_MEANT, "note"),
    Oddity(architectures.VARIABLE, architectures.UNREADABLE,
           "DeepSpeed reads only numbers such as 9.0 here, and fails at the first operator that it loads",
           "write 9.0 for 9.0a or Hopper; `zerokit launch` gives its ranks the numbers"),
    Oddity("SLURM_JOB_ID", _ANY, "inside a Slurm job; DeepSpeed's own Slurm launcher sets no RANK",
           "use the job script that `zerokit emit sbatch` writes: srun with torchrun", "note"),
    Oddity("DS_ENV_FILE", _ANY, "DeepSpeed reads another file than .deepspeed_env", _UNLESS_MEANT, "note"),
    Oddity("OMP_NUM_THREADS", "1", "CPU Adam of an offloaded optimizer runs on one core",
           "set it to the cores per rank when offloading", "note"),
    Oddity("PYTORCH_NO_CUDA_MEMORY_CACHING", _ANY, "every allocation goes to the driver: very slow", _UNSET),
    Oddity("PYTORCH_CUDA_ALLOC_CONF", _ANY, *_ALLOCATOR),
    Oddity("PYTORCH_ALLOC_CONF", _ANY, *_ALLOCATOR),
)  # fmt: skip


DEFAULT_HOSTFILE = "job/hostfile"  # deepspeed/launcher/runner.py: DLTS_HOSTFILE
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)
_FILE_MOST_BYTES = 1 << 20


def findings(around: Surroundings) -> list[DoctorFinding]:
    """Variables, network interfaces named in them, ``.deepspeed_env`` and the default hostfile."""
    result = []
    for name, pattern, what, fix, state in ODDITIES:
        value = around.environment.get(name, "").strip()
        if re.fullmatch(pattern, value, re.IGNORECASE):
            said = f"{name}={value[:80]}: {what}"
            result.append(DoctorFinding(check=f"environment.{name}", state=state, what=said, fix=fix))
    result += _interfaces(around)
    if not result:
        no_oddity = "no variable here changes what NCCL, torch or DeepSpeed do"
        result.append(ok("environment.variables", no_oddity))
    return result + _environment_files(around) + _hostfile(around)


def _interfaces(around: Surroundings) -> list[DoctorFinding]:
    """NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME must name an interface that exists."""
    try:
        have = sorted(path.name for path in (around.root / "sys/class/net").iterdir())
    except OSError:
        return []
    result = []
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = around.environment.get(name, "").strip()
        if value and not _any_interface(value, have):
            fix = f"use one of {', '.join(have)}, or unset it"
            result.append(warning(f"environment.{name}", f"{name}={value[:80]} names no interface here", fix))
    return result


def _any_interface(value: str, have: list[str]) -> bool:
    # NCCL: a list of prefixes; ^ leaves out, = asks for the exact name
    leave_out, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    names = [part for part in value.lstrip("^=").split(",") if part]
    fits = [name for name in have if any(name == part if exact else name.startswith(part) for part in names)]
    return len(fits) < len(have) if leave_out else bool(fits)


def _environment_files(around: Surroundings) -> list[DoctorFinding]:
    """What DeepSpeed would export to other nodes: runner.py reads both files, line by line."""
    name = around.environment.get("DS_ENV_FILE") or ".deepspeed_env"
    result = []
    for path in dict.fromkeys((around.home / name, around.cwd / name)):
        if path.is_file():
            result += _environment_file(path)
    return result


def _environment_file(path: Path) -> list[DoctorFinding]:
    check = "files.deepspeed-env"
    try:
        with path.open("rb") as file:
            lines = file.read(_FILE_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        return [warning(check, f"{path} cannot be read: {error.strerror}", "make it readable, or remove it")]
    bad = next((number for number, line in enumerate(lines, 1) if "=" not in line), None)
    if bad is not None:
        problem = (
            f"{path}:{bad}: not NAME=VALUE: DeepSpeed fails on blank lines and comments in multi-node runs"
        )
        return [warning(check, problem, "remove the line")]
    names = [line.partition("=")[0].strip() for line in lines]
    secret = [name for name in names if _SECRET.search(name)]
    if secret:
        problem = f"{path} hands {', '.join(secret[:5])} to every node, on the command line of ssh"
        return [warning(check, problem, "remove it; log in on the nodes instead")]
    exported = f"{path} is exported to every node: {few(names) or 'nothing'}"
    return [note(check, exported, "remove it, unless meant")]


def _hostfile(around: Surroundings) -> list[DoctorFinding]:
    path = around.root / DEFAULT_HOSTFILE
    check = "files.hostfile"
    if not path.exists():
        return []
    try:
        hosts = read_hostfile(path)
    except InputError as error:
        return [warning(check, f"plain `deepspeed` would read {path}: {error}", "fix or remove it")]
    problem = f"{path} lists {counted(len(hosts), 'host')}: plain `deepspeed` runs there by itself, over ssh"
    return [note(check, problem, "remove it, or pass --hostfile to be explicit")]
