"""A Slurm cluster of two nodes on this machine: its own munged, controller and two node daemons."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NAMES = ("node-1", "node-2")
_CONFIGURATION = """
ClusterName=zerokit
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node-%n.log
SelectType=select/cons_tres
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=5
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why there can be no cluster here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch", "unshare") if shutil.which(name) is None
    ]
    if missing:
        return f"{', '.join(missing)} not installed"
    return None


class Slurm:
    """The cluster; ``environment`` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Write the configuration, start the daemons, and wait until both nodes are idle."""
        port, host = _free_port(3), socket.gethostname()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + 1 + number} "
            "CPUs=2 RealMemory=1000 Gres=gpu:1 State=UNKNOWN"
            for number, name in enumerate(NAMES)
        )
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=host, folder=self.folder, port=port, nodes=nodes, names=",".join(NAMES)
            )
        )
        (self.folder / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/null\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        paths = {"key-file": "munge.key", "socket": "munge", "pid-file": "munge.pid",
                  "log-file": "munge.log", "seed-file": "munge.seed"}  # fmt: skip
        self._daemon("munged", "--foreground", "--force",
                     *(f"--{option}={self.folder / name}" for option, name in paths.items()))  # fmt: skip
        self._until(lambda: (self.folder / "munge").exists(), "munged listens")
        self._daemon("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        # Ranks meet at the first node: names resolve within the daemons' own mounts.
        names = self.folder / "hosts"
        names.write_text(Path("/etc/hosts").read_text() + f"127.0.0.1 {' '.join(NAMES)}\n")
        for name in NAMES:
            self._daemon(
                "unshare",
                "--mount",
                "sh",
                "-c",
                'mount --bind "$0" /etc/hosts && exec "$@"',
                str(names),
                "slurmd",
                "-D",
                "-N",
                name,
                "-f",
                str(self.folder / "slurm.conf"),
            )
        self._until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * 2, "nodes idle")

    def ask(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout

    def stop(self) -> None:
        """End the jobs, then the daemons."""
        self.ask("scancel", "--full", "--signal=KILL", "--user=root")
        for daemon in reversed(self.daemons):
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}-{len(self.daemons)}.out").open("wb") as log:
            self.daemons.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=log, start_new_session=True)
            )  # fmt: skip

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            gone = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            assert not gone and time.monotonic() < deadline, f"not: {what}; ended: {gone}"
            time.sleep(0.1)


def _free_port(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for port in range(17000, 20000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(sockets):
                one.bind(("", port + number))
            return port
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")
