"""Variables and files that change what NCCL, torch or DeepSpeed do unasked: a table, one row each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zerokit.doctor.finding import DoctorFinding, Surroundings, note, ok, warning
from zerokit.errors import InputError
from zerokit.launcher.nodes.cluster import read_hostfile
from zerokit.machine import architectures
from zerokit.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity:
    """A variable worth a remark.

    Attributes:
        value: a pattern that the whole value must match for the remark to hold.
    """

    name: str
    what: str
    fix: str
    value: str = ".+"
    state: str = "warning"


_UNSET = "unset it"
ODDITIES = (
    Oddity(
        name="NCCL_P2P_DISABLE",
        value="1",
        what="GPUs exchange through host memory, many times slower",
        fix=_UNSET,
    ),
    Oddity(name="NCCL_P2P_LEVEL", value="LOC|0", what="GPUs exchange through host memory", fix=_UNSET),
    Oddity(
        name="NCCL_IB_DISABLE", value="1", what="nodes talk over plain sockets, not InfiniBand", fix=_UNSET
    ),
    Oddity(
        name="NCCL_SHM_DISABLE",
        value="1",
        what="ranks of a node without peer access use sockets",
        fix=_UNSET,
    ),
    Oddity(
        name="NCCL_NET_GDR_LEVEL",
        value="LOC|0",
        what="network traffic is copied through the host",
        fix=_UNSET,
    ),
    Oddity(name="NCCL_ALGO", what="NCCL may not choose its algorithm", fix=_UNSET, state="note"),
    Oddity(name="NCCL_PROTO", what="NCCL may not choose its protocol", fix=_UNSET, state="note"),
    Oddity(
        name="NCCL_DEBUG",
        value="TRACE|INFO",
        what="NCCL writes much into the log",
        fix="set it to WARN",
        state="note",
    ),
    Oddity(
        name="NCCL_BLOCKING_WAIT",
        what="an old name, which torch reads with a warning",
        fix="use TORCH_NCCL_BLOCKING_WAIT",
        state="note",
    ),
    Oddity(
        name="NCCL_ASYNC_ERROR_HANDLING",
        what="an old name, which torch reads with a warning",
        fix="use TORCH_NCCL_ASYNC_ERROR_HANDLING",
        state="note",
    ),
    Oddity(
        name="TORCH_NCCL_BLOCKING_WAIT", value="1", what="every collective blocks the host: slow", fix=_UNSET
    ),
    Oddity(
        name="CUDA_LAUNCH_BLOCKING",
        value="1",
        what="every kernel waits for the one before: slow",
        fix=_UNSET,
    ),
    Oddity(
        name="CUDA_VISIBLE_DEVICES",
        value=".*(GPU|MIG)-.*",
        what="plain `deepspeed` crashes on UUIDs",
        fix="use `zerokit launch`, which resolves them, or indices",
    ),
    Oddity(
        name="RANK", what="set in this shell: without a launcher a script takes itself for it", fix=_UNSET
    ),
    Oddity(
        name="WORLD_SIZE",
        what="set in this shell: without a launcher a script waits for the others",
        fix=_UNSET,
    ),
    Oddity(
        name="LOCAL_RANK", what="set in this shell: without a launcher a script uses that GPU", fix=_UNSET
    ),
    Oddity(
        name="MASTER_ADDR",
        what="set in this shell: ranks will meet there",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="MASTER_PORT",
        what="set in this shell: ranks will meet there",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="ACCELERATE_USE_DEEPSPEED",
        what="every accelerate script in this shell uses DeepSpeed",
        fix=_UNSET,
    ),
    Oddity(
        name="ACCELERATE_DEEPSPEED_CONFIG_FILE",
        what="every accelerate script in this shell uses that file",
        fix=_UNSET,
    ),
    Oddity(
        name="DS_ACCELERATOR",
        what="DeepSpeed takes this accelerator instead of looking",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="DS_SKIP_CUDA_CHECK",
        value="1",
        what="operators are compiled with a toolkit that may not fit torch's",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name=architectures.VARIABLE,
        value=architectures.UNREADABLE,
        what="DeepSpeed reads only numbers such as 9.0 here, and fails at the first operator that it loads",
        fix="write 9.0 for 9.0a or Hopper; `zerokit launch` gives its ranks the numbers",
    ),
    Oddity(
        name="SLURM_JOB_ID",
        what="inside a Slurm job; DeepSpeed's own Slurm launcher sets no RANK",
        fix="use the job script that `zerokit emit sbatch` writes: srun with torchrun",
        state="note",
    ),
    Oddity(
        name="DS_ENV_FILE",
        what="DeepSpeed reads another file than .deepspeed_env",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="OMP_NUM_THREADS",
        value="1",
        what="CPU Adam of an offloaded optimizer runs on one core",
        fix="set it to the cores per rank when offloading",
        state="note",
    ),
    Oddity(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        what="every allocation goes to the driver: very slow",
        fix=_UNSET,
    ),
    Oddity(
        name="PYTORCH_CUDA_ALLOC_CONF",
        what="changes how much memory is reserved beyond what is allocated",
        fix="plans assume what they print under `environment`",
        state="note",
    ),
    Oddity(
        name="PYTORCH_ALLOC_CONF",
        what="changes how much memory is reserved beyond what is allocated",
        fix="plans assume what they print under `environment`",
        state="note",
    ),
)


DEFAULT_HOSTFILE = "job/hostfile"  # deepspeed/launcher/runner.py: DLTS_HOSTFILE
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)
_FILE_MOST_BYTES = 1 << 20


def findings(around: Surroundings) -> list[DoctorFinding]:
    """Variables, network interfaces named in them, ``.deepspeed_env`` and the default hostfile."""
    odd = [_oddity(oddity, around) for oddity in ODDITIES]
    result = [finding for finding in odd if finding is not None]
    result += _interfaces(around)
    if not result:
        result.append(
            ok("environment.variables", "no variable here changes what NCCL, torch or DeepSpeed do")
        )
    return result + _environment_files(around) + _hostfile(around)


def _oddity(oddity: Oddity, around: Surroundings) -> DoctorFinding | None:
    value = around.environment.get(oddity.name, "").strip()
    if not re.fullmatch(oddity.value, value, re.IGNORECASE):
        return None
    return DoctorFinding(
        check=f"environment.{oddity.name}",
        state=oddity.state,
        what=f"{oddity.name}={value[:80]}: {oddity.what}",
        fix=oddity.fix,
    )


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
    listed = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    return [
        note(check, f"{path} is exported to every node: {listed or 'nothing'}", "remove it, unless meant")
    ]


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
