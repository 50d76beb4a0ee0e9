"""Ranks on other machines: their files are fetched where the run folder is not shared, they are told that
zerokit lives, and ended.

On each host one small process, started over ssh, sends what its ranks append (whole lines only), and
writes every two seconds into ``alive`` of its run folder, as long as it hears from here. A rank whose
``alive`` stands still ends itself (:mod:`zerokit.launcher.rank.deadman`): a machine that was cut off
from us can be ended by nobody else. In a shared folder zerokit writes ``alive`` itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from zerokit.errors import NodeUnusable
from zerokit.files import write_whole
from zerokit.launcher.nodes.cluster import ask, last_words, ssh_command, sweep
from zerokit.launcher.rank.deadman import ALIVE_FILE, BEAT_SECONDS

_CONNECT_SECONDS = 10.0
_COPY_SECONDS = 10.0
_FETCHED = re.compile(r"rank-\d{5,}\.jsonl|stacks-\d{5,}\.txt")
_LONGEST_LINE = 256 << 20

# Runs there, standard library only: a line of JSON for each file that grew, {} where none did. Ends when
# nothing comes from here any more, or nobody reads.
_RELAY = """
import json, os, re, select, sys, time
folder, limit, once = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "once"
wanted, alive = re.compile(sys.argv[4]), os.path.join(folder, sys.argv[5])
known, heard, beat = {}, time.monotonic(), 0
def tell(value):
    sys.stdout.write(json.dumps(value) + "\\n")
    sys.stdout.flush()
def look():
    sent = False
    try:
        names = sorted(name for name in os.listdir(folder) if wanted.fullmatch(name))
    except OSError:
        names = []
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                status = os.fstat(file.fileno())
                inode, offset = known.get(name, (status.st_ino, 0))
                if inode != status.st_ino or status.st_size < offset:
                    offset = 0
                file.seek(offset)
                data = file.read(8 << 20)
        except OSError:
            continue
        data = data if once else data[: data.rfind(b"\\n") + 1]
        if data:
            tell({"name": name, "offset": offset, "data": data.decode("latin-1")})
            sent = True
        known[name] = (status.st_ino, offset + len(data))
    return sent
if once:
    while look():
        pass
    sys.exit(0)
os.makedirs(folder, exist_ok=True)
while time.monotonic() - heard < limit:
    if select.select([0], [], [], 0.4)[0]:
        if not os.read(0, 4096):
            break
        heard, beat = time.monotonic(), beat + 1
        with open(alive, "w") as file:
            file.write("%020d" % beat)
    if not look():
        tell({})
"""


def copy_to(hosts: list[str], run_dir: Path, names: list[str]) -> None:
    """Make the run folder on hosts that do not share it, with these files of it. Raises NodeUnusable: names
    the host and what it said."""
    texts = {name: (run_dir / name).read_text() for name in names if (run_dir / name).is_file()}
    script = (
        "import json, os, sys\n"
        "os.makedirs(sys.argv[1], exist_ok=True)\n"
        f"for name, text in json.loads({json.dumps(texts | {ALIVE_FILE: '0' * 20})!r}).items():\n"
        "    with open(os.path.join(sys.argv[1], name), 'w') as file: file.write(text)\n"
    )

    problems = []
    for host, done in zip(hosts, ask(hosts, _COPY_SECONDS, script, run_dir), strict=True):
        if isinstance(done, NodeUnusable):
            raise done
        if isinstance(done, Exception):
            problems.append(f"{host}: {done}")
        elif done.returncode:
            problems.append(f"{host}: {last_words(done)}")
    if problems:
        raise NodeUnusable(f"{run_dir} cannot be written on\n  " + "\n  ".join(problems))


class OtherMachines:
    """The other machines of a run: fetches from those that do not share its folder, keeps ``alive`` going on
    all, and signals its processes there. Without any, every method does nothing."""

    def __init__(
        self, run_dir: Path, hosts: Sequence[str], unshared: Sequence[str], slurm_job: str | None = None,
        alive_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        self.run_dir, self.hosts, self.unshared = run_dir, list(hosts), unshared
        self.slurm_job, self.alive_seconds = slurm_job, alive_seconds
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._beats = 0

    def start(self) -> None:
        """Begin; costs a thread for each host that does not share the folder, and one for ``alive``."""
        for host in self.unshared:
            threading.Thread(target=self._follow, args=(host,), daemon=True).start()
        if self.hosts:
            threading.Thread(target=self._beat, daemon=True).start()

    def stop(self) -> None:
        """End the relays; their hosts' ``alive`` then stands still."""
        self._over.set()
        with self._lock:
            processes = list(self._processes.values())
        for process in processes:
            with suppress(OSError):
                process.kill()

    def sweep(self, number: int) -> None:
        """Signal the run's processes there, without holding up the caller."""
        if self.hosts:
            threading.Thread(target=self._sweep, args=(number,), daemon=True).start()

    def _sweep(self, number: int) -> dict[str, int | None]:
        return sweep(self.hosts, str(self.run_dir), number, self.slurm_job)

    def end(self) -> list[str]:
        """Kill what is left there and fetch the last of the files; the hosts that gave no answer."""
        silent = [host for host, answer in self._sweep(int(signal.SIGKILL)).items() if answer is None]
        self.stop()

        def fetch(host: str) -> None:
            command = self._command(host, "once")
            with suppress(OSError, subprocess.TimeoutExpired, ValueError, NodeUnusable):
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                      timeout=_COPY_SECONDS, check=False)  # fmt: skip
                for line in done.stdout.splitlines():
                    self._receive(line)

        hosts = [host for host in self.unshared if host not in silent]
        threads = [threading.Thread(target=fetch, args=(host,), daemon=True) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_COPY_SECONDS + 2)
        return silent

    def _beat(self) -> None:
        while not self._over.is_set():
            self._beats += 1
            with suppress(OSError):
                write_beat(self.run_dir / ALIVE_FILE, self._beats)
            with self._lock:
                processes = list(self._processes.values())
            for process in processes:
                with suppress(OSError, ValueError):
                    assert process.stdin is not None
                    os.write(process.stdin.fileno(), b".")
            self._over.wait(BEAT_SECONDS)

    def _command(self, host: str, mode: str) -> list[str]:
        remote = [sys.executable, "-I", "-c", _RELAY, str(self.run_dir), f"{self.alive_seconds:g}", mode]
        return ssh_command(host, _CONNECT_SECONDS, *remote, _FETCHED.pattern, ALIVE_FILE)

    def _follow(self, host: str) -> None:
        while not self._over.is_set():
            with suppress(OSError, ValueError, NodeUnusable), subprocess.Popen(
                self._command(host, "follow"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ) as process:  # fmt: skip
                assert process.stdin is not None and process.stdout is not None
                os.set_blocking(process.stdin.fileno(), False)
                with self._lock:
                    self._processes[host] = process
                try:
                    while not self._over.is_set() and (line := process.stdout.readline(_LONGEST_LINE)):
                        self._receive(line)
                finally:
                    with self._lock:
                        del self._processes[host]
                    process.kill()
            self._over.wait(1.0)

    def _receive(self, line: bytes) -> None:
        """Write one piece at its place. What a host sends may only be a rank's file."""
        piece: Mapping[str, object] = json.loads(line)
        name, offset, data = piece.get("name"), piece.get("offset"), piece.get("data")
        if not isinstance(name, str) or not _FETCHED.fullmatch(name):
            return
        if not isinstance(offset, int) or not isinstance(data, str):
            return
        path = self.run_dir / name
        with suppress(OSError):
            if offset == 0:  # new, or compacted: what is read at the same time is whole
                write_whole(path, data.encode("latin-1"), durable=False, mode=0o600)
                return
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(data.encode("latin-1"))


def write_beat(path: Path, number: int) -> None:
    """Overwrite the beat in place: on a full disk that still works."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, b"%020d" % number, 0)
    finally:
        os.close(descriptor)
