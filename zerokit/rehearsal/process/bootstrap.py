"""Started by path, so that the script finds no module of ours: ``bootstrap.py DESCRIPTOR``."""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
if __name__ == "__main__" and sys.path and os.path.realpath(sys.path[0]) == _HERE:
    del sys.path[0]

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
sys.path.insert(0, _ROOT)
from zerokit.rehearsal.process import zygote  # noqa: E402

sys.path.remove(_ROOT)

if __name__ == "__main__":
    _code = zygote.main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_code)  # no exit handler of a library meets the fake GPU
