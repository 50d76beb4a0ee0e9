"""Stands in for ``ssh``: every host is this machine, except those whose name begins with ``gone``."""

import subprocess
import sys

arguments = sys.argv[1:]
while arguments and arguments[0].startswith("-"):
    option = arguments.pop(0)
    if option == "--":
        break
    if option in ("-o", "-p"):
        arguments.pop(0)
host = arguments.pop(0)
if host.startswith("gone"):
    print(f"ssh: connect to host {host} port 22: No route to host", file=sys.stderr)
    sys.exit(255)
sys.exit(subprocess.call(["/bin/sh", "-c", " ".join(arguments)]))
