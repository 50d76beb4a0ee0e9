"""Variables and files that change what DeepSpeed does without being asked."""

from __future__ import annotations

import re
from pathlib import Path

from zerokit.doctor.finding import DoctorFinding, Surroundings, note, ok, warning
from zerokit.doctor.variables import ODDITIES, Oddity
from zerokit.errors import InputError
from zerokit.launcher.nodes.cluster import read_hostfile
from zerokit.units import counted

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
