"""An SSH server for a test host: ``sshd.py ADDRESS FOLDER``; the folder holds its key and the user's.

Commands run through /bin/sh in the server's own namespaces and environment, as sshd runs them.
"""

import asyncio
import sys
from pathlib import Path

import asyncssh


async def handle(process: asyncssh.SSHServerProcess) -> None:
    child = await asyncio.create_subprocess_shell(
        process.command or "exit 0",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    code = await child.wait()
    await process.stdout.drain()
    process.exit(code if code >= 0 else 128 - code)


async def serve(address: str, folder: Path) -> None:
    await asyncssh.listen(
        address,
        22,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "user_key.pub"),
        process_factory=handle,
        encoding=None,
        gss_host=None,  # else it asks a name server that cannot be reached from here
    )
    (folder / f"listens-{address}").touch()
    await asyncio.Event().wait()


asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
