"""Stands in for the ``deepspeed`` program where DeepSpeed's launcher is not what is tested.

Two processes like the real one (runner → launch.py → ranks), which import no torch: the runner drops a
negative exit code of the inner one, the inner one looks once a second, and ends the other
ranks one after the other when one fails, waiting 30 s for each.
"""

import os
import signal
import subprocess
import sys
import time


def inner(ranks: int, port: str, command: list[str]) -> int:
    processes = []
    for rank in range(ranks):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(ranks),
            MASTER_PORT=port,
            MASTER_ADDR="127.0.0.1",
        )
        processes.append(subprocess.Popen([sys.executable, "-u", *command], env=environment))

    def end(*_: object) -> None:
        for process in processes:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    alive = list(processes)
    while alive:
        for process in list(alive):
            code = process.poll()
            if code:
                for other in alive:
                    if other is not process:
                        other.terminate()
                for other in alive:
                    try:
                        other.wait(30)
                    except subprocess.TimeoutExpired:
                        other.kill()
                return code & 0xFF
            if code == 0:
                alive.remove(process)
        time.sleep(1)
    return 0


def main() -> int:
    arguments = sys.argv[1:]
    if arguments and arguments[0] == "--inner":
        return inner(int(arguments[1]), arguments[2], arguments[3:])
    values = {}
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        values[name] = value
    # --include=localhost:0,1 names GPUs, --num_accelerators counts CPU ranks
    ranks = values.get("--num_accelerators") or str(len(values["--include"].split(",")))
    command = [sys.executable, __file__, "--inner", ranks, values["--master_port"]]
    result = subprocess.Popen([*command, *arguments])
    result.wait()
    return result.returncode if result.returncode > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
