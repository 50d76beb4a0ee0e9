"""The run's processes on other machines, which no guard watches: signalled through ssh or srun."""

from __future__ import annotations

import signal
import threading

from zerokit.launcher.launch import Launch
from zerokit.launcher.nodes import cluster
from zerokit.launcher.nodes.gather import Gatherer


class RemoteProcesses:
    """The other machines of a launch. Without any, every method does nothing."""

    def __init__(self, launch: Launch) -> None:
        self._placement = launch.placement
        self._run_dir = str(launch.run_dir)
        self._hosts = list(launch.placement.remote_hosts)
        self._gatherer: Gatherer | None = None
        if self._hosts:
            self._gatherer = Gatherer(
                launch.run_dir, launch.placement.unshared_hosts, launch.placement.alive_seconds
            )

    def start(self) -> None:
        """Begin to fetch the ranks' files."""
        if self._gatherer is not None:
            self._gatherer.start()

    def stop(self) -> None:
        """Fetch no more."""
        if self._gatherer is not None:
            self._gatherer.stop()

    def sweep(self, number: int) -> None:
        """Signal the run's processes there, without holding up the caller."""
        if self._hosts:
            arguments = (self._hosts, self._run_dir, number, self._placement.slurm_job)
            threading.Thread(target=cluster.sweep, args=arguments, daemon=True).start()

    def end(self) -> list[str]:
        """Kill what is left there and fetch the last of the files; the hosts that gave no answer."""
        answers = cluster.sweep(self._hosts, self._run_dir, int(signal.SIGKILL), self._placement.slurm_job)
        silent = [host for host, answer in answers.items() if answer is None]
        if self._gatherer is not None:
            self._gatherer.stop()
            self._gatherer.fetch([host for host in self._placement.unshared_hosts if host not in silent])
        return silent
