"""Runs torchrun or Accelerate's launcher on one machine, with torch's store on the loopback address.

``agent.py PROGRAM ARGS…`` or ``agent.py -m MODULE ARGS…``. torch's agent makes the store of the ranks that it
starts, with a port and no address (torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py:67 of 2.13):
it would listen on every interface.
"""

import os
import runpy
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
_ROOT = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120

if __name__ == "__main__":
    if sys.path and os.path.realpath(sys.path[0]) == _HERE:
        del sys.path[0]  # our modules must not hide the program's
    sys.path.insert(0, _ROOT)
    from zerokit.instrument.post_import import PostImport
    from zerokit.launcher.rank import local_store

    sys.path.remove(_ROOT)
    PostImport({local_store.STATIC_RENDEZVOUS: local_store.keep_store_local}).install()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
