"""Stands in for ``srun --ntasks=N … COMMAND``: every node is this machine; when a task fails, all end."""

import os
import subprocess
import sys
import time

arguments = sys.argv[1:]
tasks = 1
while arguments and arguments[0].startswith("--"):
    name, _, value = arguments.pop(0).partition("=")
    tasks = int(value) if name == "--ntasks" else tasks
running = [
    subprocess.Popen(arguments, env={**os.environ, "SLURM_PROCID": str(number), "SLURM_NODEID": str(number)})
    for number in range(tasks)
]
while True:
    codes = [task.poll() for task in running]
    failed = [code for code in codes if code]
    if failed or None not in codes:
        for task in running:
            if task.poll() is None:
                task.terminate()
        sys.exit(max((abs(code) for code in failed), default=0))
    time.sleep(0.1)
