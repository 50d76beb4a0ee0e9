"""Writes the report of a run whose zerokit process died. The guard becomes this once nobody is left.

``python finish.py RUN_DIR '[[rank, exit status or null], …]'``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Our folder would shadow other people's modules; the package root may not be installed.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    sys.path.append(str(_HERE.parents[2]))


def main(run_dir: Path, exits: list[tuple[int, int | None]]) -> None:
    """Build and write the report: zerokit was lost, whatever the ranks did. Raises ReportNotWritten: the disk
    is full."""
    import socket
    import time

    from zerokit.emit import plan_file
    from zerokit.launcher.nodes.gather import OtherMachines
    from zerokit.launcher.run_folder import COMMAND_FILE
    from zerokit.launcher.verdict.evidence import Evidence, RankExit
    from zerokit.launcher.verdict.report import build_report, write_report

    command = json.loads((run_dir / COMMAND_FILE).read_text())
    hosts, unshared = (command.get(name) or [] for name in ("remote_hosts", "unshared_hosts"))
    OtherMachines(run_dir, hosts, unshared, command.get("slurm_job")).end()
    host, now = socket.gethostname(), time.time()
    evidence = Evidence(
        expected_ranks=int(command["expected_ranks"]),
        exits=[RankExit.of_status(rank, status, host=host, at=now) for rank, status in exits],
        host=host,
        launcher_lost="zerokit itself was killed; the guard ended the ranks",
        stopped_at=0.0,  # nobody knows when: no failure of a rank goes before it
    )
    evidence.read_files(run_dir)
    plan, problems = plan_file.read_of_run(run_dir)
    evidence.problems = [*evidence.problems, *problems]
    write_report(run_dir, build_report(evidence, plan=plan))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [(int(rank), code) for rank, code in json.loads(sys.argv[2])])
