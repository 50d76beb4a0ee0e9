"""Runs the user's script inside a rank, measured, as if Python ran it directly.

``bootstrap.py [--local_rank=N] [--module] [--] SCRIPT ARGS…`` is started by deepspeed, torchrun or
accelerate in place of the script. DeepSpeed puts ``--local_rank=N`` in front of the arguments; it goes
right after the script's name, where an unmodified script expects it. On other machines the arguments come
as one word, ``--packed=…`` (:mod:`zerokit.launcher.rank_start`).

Launchers are started in the root folder, so that no file of the user's working folder becomes a module of
theirs; the rank goes to the working folder itself, ``ZEROKIT_CWD``.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
if __name__ == "__main__" and sys.path and os.path.realpath(sys.path[0]) == _HERE:
    del sys.path[0]  # our own modules must not be importable as "probe" or "report" by the script

# The package that this file is part of, though another version be installed or nothing at all.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
sys.path.insert(0, _ROOT)
from zerokit.launcher import rank_start  # noqa: E402

if __name__ == "__main__":
    rank_start.become(os.path.abspath(__file__), sys.argv[1:])  # noqa: PTH100
    rank_start.enter_working_folder()
    rank_start.take_share()

from zerokit.launcher.rank import process as rank_process  # noqa: E402

sys.path.remove(_ROOT)

if __name__ == "__main__":
    rank_process.main(sys.argv[1:])
