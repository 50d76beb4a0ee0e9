"""Stands in for ``pdsh -S -f N -w HOSTS COMMAND``: a shell on this machine for each host."""

import subprocess
import sys

arguments = sys.argv[1:]
hosts = []
while arguments and arguments[0].startswith("-"):
    option = arguments.pop(0)
    if option in ("-f", "-w"):
        value = arguments.pop(0)
        hosts = value.split(",") if option == "-w" else hosts
command = " ".join(arguments)
if "pkill" in command:
    sys.exit(0)  # on one machine it would find zerokit's own processes
shells = [
    subprocess.Popen(["/bin/sh", "-c", command.replace("%n", str(index))]) for index in range(len(hosts))
]
sys.exit(max(shell.wait() for shell in shells))
