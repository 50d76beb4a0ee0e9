"""Two hosts on this machine: namespaces of network, processes, mounts and host name, each with an sshd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
_IP = "ip"


def why_not() -> str | None:
    """Why hosts cannot be made here, or None."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    missing = [name for name in (_IP, "unshare", "ssh") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        import asyncssh  # noqa: F401
    except ImportError:
        return "asyncssh is not installed"
    name = f"zk{os.getpid()}-try"
    done = subprocess.run([_IP, "netns", "add", name], capture_output=True, check=False)
    if done.returncode:
        return "the kernel refuses network namespaces"
    subprocess.run([_IP, "netns", "del", name], check=False)
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Host:
    """One host: reached as ``name``, at ``address``."""

    def __init__(self, number: int, folder: Path, private: Path | None) -> None:
        self.name = f"node-{number}"
        self.namespace = f"zk{os.getpid()}-{number}"
        self.link = f"zk{os.getpid() % 100000}-{number}"
        block = os.getpid() % (127 * 25)  # apart from what another, or a killed, test session has made
        self.address = f"10.{64 + block // 25}.{10 * (block % 25) + number}.2"
        self.folder = folder
        self.private = private
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the network and start the sshd; ``private`` is a folder of its own there."""
        _run(_IP, "netns", "add", self.namespace)
        _run(_IP, "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _run(_IP, "addr", "add", self.address[:-1] + "1/24", "dev", self.link)
        _run(_IP, "link", "set", self.link, "up")
        inside = [_IP, "-n", self.namespace]
        _run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "route", "add", "default", "via", self.address[:-1] + "1")
        mount = f"mount -t tmpfs none '{self.private}' && " if self.private else ""
        script = f"hostname {self.name} && {mount}exec '{sys.executable}' '{PROGRAMS / 'sshd.py'}' "
        self.process = subprocess.Popen(
            [_IP, "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "--pid", "--fork",
             "--kill-child", "--mount-proc", "sh", "-c", script + f"{self.address} '{self.folder}'"],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / f"listens-{self.address}").exists():
            assert self.process is not None and self.process.poll() is None, "the sshd ended"
            assert time.monotonic() < deadline, "the sshd does not listen"
            time.sleep(0.05)

    def cut_off(self) -> None:
        """Pull the plug: nothing arrives and nobody is told."""
        _run(_IP, "link", "set", self.link, "down")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()  # --kill-child: its whole process namespace goes
            self.process.wait()
        subprocess.run([_IP, "link", "del", self.link], capture_output=True, check=False)
        subprocess.run([_IP, "netns", "del", self.namespace], capture_output=True, check=False)


def programs(folder: Path, hosts: list[Host], *, real_pdsh: bool) -> str:
    """A PATH with the real ssh client, told where the hosts are, and pdsh: the real one, or one of ours."""
    import asyncssh

    for name in ("host_key", "user_key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(folder / name))
        key.write_public_key(str(folder / f"{name}.pub"))
        (folder / name).chmod(0o600)
    lines = [f"Host {host.name}\n  HostName {host.address}\n" for host in hosts]
    common = f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
    known = (
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
    )
    (folder / "ssh_config").write_text("".join(lines) + common + known)
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    ssh = bin_folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    ssh.chmod(0o755)
    if not real_pdsh:
        pdsh = bin_folder / "pdsh"
        pdsh.write_text(f"#!{sys.executable}\n" + (PROGRAMS / "pdsh_ssh.py").read_text())
        pdsh.chmod(0o755)
    return f"{bin_folder}:{os.environ['PATH']}"
