"""The guard: a small process of its own between zerokit and the launcher, so that nobody is left behind.

It runs in its own session, is the reaper of every orphan below it
(``PR_SET_CHILD_SUBREAPER``), and holds a socket to zerokit whose end of file means
that zerokit died. It starts the launcher, finds the ranks, tells zerokit of every
exit, and on request, or when zerokit is gone, ends them all: SIGTERM, grace, SIGKILL,
to all ranks side by side.

Run as a file, isolated: ``python -I -S guard.py SOCKET_FD`` with a JSON line of
:func:`main`'s ``order`` on the socket. Events go back as JSON lines. A rank's exit status is
read from its zombie through a pidfd, because the rank is the launcher's child, not ours.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # Appended, so that nothing beside zerokit can shadow the standard library.
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from zerokit.launcher import processes

FAST_SCAN_SECONDS = 0.05
SLOW_SCAN_SECONDS = 2.0
START_SECONDS = 60.0  # so long ranks are looked for with more of a core: one may die young
ORPHAN_GRACE_SECONDS = 1.0
PARENT_LOST_GRACE_SECONDS = 0.8
GIVE_UP_SECONDS = 5.0  # of killing
LAUNCHER_KILLS_SECONDS = 3.0  # for srun to kill its tasks on every node


class Guard:
    """The state of one guarded launch; see the module."""

    def __init__(self, connection: socket.socket, order: dict[str, Any]) -> None:
        self.connection = connection
        self.order = order
        self.expected_ranks = int(order["expected_ranks"])
        self.run_dir = os.fsencode(str(order["run_dir"]))
        self.launcher: subprocess.Popen[bytes] | None = None
        self.launcher_code: int | None = None
        self.ranks: dict[int, tuple[int, processes.Process]] = {}  # pid -> rank, process
        self.exited: dict[int, int | None] = {}  # pid -> code
        self.pidfds: dict[int, int] = {}  # fd -> pid
        self.poll = select.poll()
        self.began = time.monotonic()
        self.next_scan = 0.0
        self.buffer = b""
        self.parent_alive = True
        self.stopping = False
        self.kill_at: float | None = None
        self.terminated: set[tuple[int, int]] = set()
        self.give_up_at: float | None = None
        self.spare_launcher = bool(order.get("spare_launcher"))
        self.launcher_kills = bool(order.get("launcher_kills"))

    # ---- talking to zerokit

    def tell(self, event: str, **values: Any) -> None:
        """Send one event; a parent that does not listen any more is noticed by the reader."""
        line = json.dumps({"event": event, "at": time.time(), **values}).encode() + b"\n"
        with suppress(OSError):
            self.connection.sendall(line)

    def read_commands(self) -> None:
        """Obey the supervisor; where it is gone, end everything."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            if self.parent_alive:
                self.parent_alive = False
                self.poll.unregister(self.connection)
                # A launcher of other machines needs longer: it has to reach them first.
                self.stop(PARENT_LOST_GRACE_SECONDS * (6 if self.spare_launcher else 1))
            return
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "stop":
                self.stop(float(command["grace_seconds"]))
            elif command["do"] == "signal":
                self.signal_ranks(int(command["signal"]), wake=bool(command.get("wake")))

    # ---- starting and watching

    def start(self) -> None:
        """Start the launcher with the standard streams that zerokit made."""
        self.launcher = subprocess.Popen(
            self.order["argv"],
            cwd=self.order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=self.order["stdout_fd"],
            stderr=self.order["stderr_fd"],
            start_new_session=True,  # a rank that kills its process group does not kill us
        )
        for name in ("stdout_fd", "stderr_fd"):
            os.close(self.order[name])
        self.tell("launcher_started", pid=self.launcher.pid)

    def scan(self) -> None:
        """Find ranks: processes with RANK whose parent has none (a data loader's parent has)."""
        began = time.monotonic()
        table = processes.read_table()
        alive = [p for p in processes.descendants(os.getpid(), table) if p.alive]
        # Orphans last: a daemon that a rank left behind carries RANK too, and is our child by now.
        for process in sorted(alive, key=lambda p: (p.parent == os.getpid(), p.start_ticks)):
            if process.pid in self.ranks:
                continue
            rank = self._rank_of(process.pid)
            if rank is None or (process.parent != os.getpid() and self._rank_of(process.parent) is not None):
                continue
            self._add_rank(rank, process)
        now = time.monotonic()
        missing = len(self.ranks) < self.expected_ranks
        every = FAST_SCAN_SECONDS if missing else SLOW_SCAN_SECONDS
        share = 4 if missing and now - self.began < START_SECONDS else 40
        self.next_scan = now + max(every, share * (now - began))

    def _rank_of(self, pid: int) -> int | None:
        environment = processes.read_environment(pid)
        text = environment.get(b"RANK", b"")
        if environment.get(b"ZEROKIT_RUN_DIR") != self.run_dir or not text.isdigit():
            return None
        return int(text)

    def _add_rank(self, rank: int, process: processes.Process) -> None:
        if any(known_rank == rank for known_rank, _ in self.ranks.values()):
            return
        self.ranks[process.pid] = (rank, process)
        try:
            fd = os.pidfd_open(process.pid)
        except (OSError, AttributeError):
            fd = -1
        if fd >= 0:
            self.pidfds[fd] = process.pid
            self.poll.register(fd, select.POLLIN)
        self.tell("rank", rank=rank, pid=process.pid)

    def rank_ended(self, pid: int, code: int | None) -> None:
        """Report a rank's end once; ``code`` None: it was reaped before we could read it."""
        if pid in self.exited:
            return
        self.exited[pid] = code
        self.tell("rank_exit", rank=self.ranks[pid][0], pid=pid, code=code)

    def look_at_dead(self, pid: int) -> None:
        """A rank's pidfd fired: read its status while it is still a zombie."""
        process = processes.read_process(pid)
        status = process.exit_status if process is not None and process.state == "Z" else None
        if process is not None and process.parent == os.getpid():
            return  # ours by now: waitpid tells
        self.rank_ended(pid, None if status is None else os.waitstatus_to_exitcode(status))

    def reap(self) -> None:
        """Note the children that ended, the launcher among them."""
        for pid, code in processes.reap():
            if self.launcher is not None and pid == self.launcher.pid:
                self.launcher_code = code
                self.launcher.returncode = code
                self.scan()
                alive = sorted({rank for p, (rank, _) in self.ranks.items() if p not in self.exited})
                self.tell("launcher_exit", code=code, ranks_alive=self._really_alive(alive))
            elif pid in self.ranks:
                self.rank_ended(pid, code)

    def _really_alive(self, ranks: list[int]) -> list[int]:
        alive = []
        for pid, (rank, started) in self.ranks.items():
            now = processes.read_process(pid)
            if rank in ranks and now and now.alive and now.start_ticks == started.start_ticks:
                alive.append(rank)
        return sorted(alive)

    # ---- ending

    def signal_ranks(self, number: int, *, wake: bool) -> None:
        """Send a signal to the ranks alone; ``wake`` also continues stopped ones."""
        living = [process for pid, (_, process) in self.ranks.items() if pid not in self.exited]
        processes.send(living, number)
        if wake:
            processes.send(living, signal.SIGCONT)

    def stop(self, grace_seconds: float) -> None:
        """End everything: SIGTERM now, SIGKILL after the grace; a second call may only shorten it."""
        now = time.monotonic()
        kill_at = now + max(0.0, grace_seconds)
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        if self.stopping:
            return
        self.stopping = True
        self.scan()
        if self.spare_launcher and self.launcher is not None:
            # It alone can reach the other machines: it must hear of the end. srun leaves the ranks no
            # time then (srun(1), SIGNALS): zerokit tells them itself, and srun only after the grace.
            if not self.launcher_kills:
                self._tell_launcher()
        elif self.ranks:
            # The launcher would pass the signal on again, wait 30 s for each rank in turn, or
            # start them anew. Without it the ranks are our children, and we hear how they end. What a rank
            # that has ended left behind is among them.
            processes.kill(self._launchers(), now)
        self.advance_stop()

    def _tell_launcher(self) -> None:
        if self.launcher is not None:
            with suppress(ProcessLookupError):
                self.launcher.send_signal(signal.SIGTERM)

    def _below_ranks(self, table: dict[int, processes.Process]) -> set[int]:
        below: set[int] = set()
        for pid in self.ranks:
            if pid not in self.exited:
                below.add(pid)
                below.update(p.pid for p in processes.descendants(pid, table))
        return below

    def _launchers(self) -> list[processes.Process]:
        table = processes.read_table()
        inside = self._below_ranks(table)
        return [p for p in processes.descendants(os.getpid(), table) if p.alive and p.pid not in inside]

    def advance_stop(self) -> bool:
        """One step of ending; True when nobody is left (or those left cannot be killed)."""
        self.reap()
        table = processes.read_table()
        alive = [p for p in processes.descendants(os.getpid(), table) if p.alive]
        now = time.monotonic()
        if not alive:
            self.reap()  # who died since the last look: a zombie would outlive us where init reaps nobody
            return True
        if self.kill_at is not None and now >= self.kill_at and self.launcher_kills:
            self.launcher_kills = False
            self._tell_launcher()
            self.kill_at = now + LAUNCHER_KILLS_SECONDS
        if self.kill_at is not None and now >= self.kill_at:
            self.give_up_at = self.give_up_at or now + GIVE_UP_SECONDS
            processes.kill(alive, self.give_up_at - GIVE_UP_SECONDS)
            return now > self.give_up_at
        # Ranks first; what a rank started is told only when that rank is gone, or a checkpoint
        # being written would lose its data loaders.
        inside = self._below_ranks(table)
        living_ranks = {pid for pid in self.ranks if pid not in self.exited}
        launcher = self.launcher.pid if self.launcher and self.spare_launcher else -1
        to_signal = [p for p in alive if (p.pid in living_ranks or p.pid not in inside) and p.pid != launcher]
        unsignalled = [p for p in to_signal if (p.pid, p.start_ticks) not in self.terminated]
        processes.send(unsignalled, signal.SIGTERM)
        processes.send(unsignalled, signal.SIGCONT)
        self.terminated.update((p.pid, p.start_ticks) for p in unsignalled)
        if self.ranks and not living_ranks and self.kill_at is not None:
            self.kill_at = min(self.kill_at, now + ORPHAN_GRACE_SECONDS)
        return False

    def finish(self) -> None:
        """Report what is left, or, with zerokit gone, have the report written in our place."""
        alive_pids = [p.pid for p in processes.descendants(os.getpid()) if p.alive]
        self.tell("done", survivors=alive_pids)
        if self.parent_alive:
            return
        for folder in self.order.get("temporary", ()):
            shutil.rmtree(folder, ignore_errors=True)
        exits = [[self.ranks[pid][0], code] for pid, code in self.exited.items()]
        argv = [*self.order["when_parent_lost"], json.dumps(exits)]
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execv(argv[0], argv)

    # ---- the loop

    def run(self, wake_fd: int) -> None:
        """Watch until the launcher and all below it are gone."""
        self.poll.register(self.connection, select.POLLIN | select.POLLHUP)
        self.poll.register(wake_fd, select.POLLIN)
        self.start()
        while True:
            for fd, _ in self.poll.poll(self._timeout_ms()):
                if fd == wake_fd:
                    with suppress(BlockingIOError):
                        os.read(wake_fd, 65536)
                elif fd == self.connection.fileno():
                    self.read_commands()
                elif fd in self.pidfds:
                    pid = self.pidfds.pop(fd)
                    self.poll.unregister(fd)
                    os.close(fd)
                    self.look_at_dead(pid)
            self.reap()
            self._check_without_pidfd()
            if self.stopping:
                if self.advance_stop():
                    break
            elif self.launcher_code is not None and not self._really_alive(
                [r for r, _ in self.ranks.values()]
            ):
                # All over: what the ranks left running is not theirs to leave.
                self.stop(ORPHAN_GRACE_SECONDS)
            elif time.monotonic() >= self.next_scan:
                self.scan()
        self.finish()

    def _check_without_pidfd(self) -> None:
        watched = set(self.pidfds.values())
        for pid in list(self.ranks):
            if pid in self.exited or pid in watched:
                continue
            process = processes.read_process(pid)
            if process is None:
                self.rank_ended(pid, None)
            elif process.state == "Z":
                self.look_at_dead(pid)

    def _timeout_ms(self) -> int:
        if self.stopping:
            return 50
        until = max(0.0, self.next_scan - time.monotonic())
        return int(1000 * min(until, SLOW_SCAN_SECONDS)) + 1


def main() -> None:
    """Read the order from the socket, then guard.

    ``order``: argv, cwd, stdout_fd, stderr_fd, run_dir, expected_ranks, spare_launcher (it is told of
    the end and not killed at once), launcher_kills (it kills the ranks when it is told),
    when_parent_lost (the command that writes the report should zerokit die), temporary (folders to
    remove then).
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            return
        data += part
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # not SIG_IGN: the ranks would inherit that
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        # Slurm sends them to every process of a step: no launcher may die of one. The ranks inherit this, and
        # a script that wants them puts its own handler.
        signal.signal(number, signal.SIG_IGN)
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    processes.become_subreaper()
    guard = Guard(connection, json.loads(data))
    try:
        guard.run(read_fd)
    except BaseException as error:
        guard.tell("error", message=f"{type(error).__name__}: {error}")
        processes.kill_descendants(os.getpid())
        raise
    # Stay until zerokit has read the last event: our exit is then an orderly one.
    if guard.parent_alive:
        connection.settimeout(10)
        with suppress(OSError):
            connection.recv(1)


if __name__ == "__main__":
    main()
