"""Stands in for ``pdsh -S -f N -w HOSTS COMMAND`` (PDSH_RCMD_TYPE=ssh): an ssh for each host."""

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
clients = [
    subprocess.Popen(["ssh", host, command.replace("%n", str(index))], stdin=subprocess.DEVNULL)
    for index, host in enumerate(hosts)
]
sys.exit(max(client.wait() for client in clients))
