"""torch's store of a run on one machine listens on the loopback address, not on every interface.

Whoever reaches the store can stop the run or send it data, and it asks for no password. torch makes it with
a port alone, but takes a socket that listens already (``master_listen_fd``). With DeepSpeed's launcher rank 0
makes the store, with torchrun and Accelerate the agent that starts the ranks (:mod:`zerokit.launcher.agent`).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_LOOPBACK = ("127.0.0.1", "localhost")
_BACKLOG = 2048  # as torch/csrc/distributed/c10d/socket.cpp:listen of 2.13
_POSITIONAL = ("host_name", "port", "world_size", "is_master", "timeout")  # torch/_C/_distributed_c10d.pyi

RENDEZVOUS = "torch.distributed.rendezvous"
STATIC_RENDEZVOUS = "torch.distributed.elastic.rendezvous.static_tcp_rendezvous"


def keep_store_local(module: ModuleType) -> None:
    """After one of the modules named above was executed: the stores that it makes."""
    if module.__name__ == RENDEZVOUS and not inspect.isfunction(vars(module).get("_create_c10d_store")):
        return  # a torch that makes its store elsewhere
    make = module.TCPStore

    def local_store(*arguments: Any, **options: Any) -> Any:
        listening = _listening({**dict(zip(_POSITIONAL, arguments, strict=False)), **options})
        if listening is None:
            return make(*arguments, **options)
        try:
            return make(*arguments, **options, master_listen_fd=listening)
        except (RuntimeError, TypeError):  # torch 2.4 and 2.5: not with libuv's store
            with contextlib.suppress(OSError):
                os.close(listening)
            return make(*arguments, **options)

    module.TCPStore = local_store  # type: ignore[attr-defined]


def _listening(options: Mapping[str, Any]) -> int | None:
    """A socket for this store, where it is the server and all that will reach it are on this machine."""
    if "master_listen_fd" in options or not options.get("is_master"):
        return None
    host, port = options.get("host_name"), options.get("port")
    if host not in _LOOPBACK or not isinstance(port, int) or port <= 0:
        return None
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(_BACKLOG)
    except OSError:
        server.close()
        return None  # torch says what is wrong with the port
    return server.detach()
