"""Python processes of our own, which import nothing from the folder that the user stands in.

``python -m`` puts the working folder first among the places of modules, and Python 3.10 has no ``-P``: a
``typing.py`` in somebody's repository would run.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# Nothing is imported before the working folder is gone: sys is built in.
_START = (
    "import sys; del sys.path[:sys.path[:1] == ['']]; sys.path.append(sys.argv.pop(1)); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_process(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours as ``python -m`` does, without the working folder's modules."""
    return [sys.executable, "-c", _START, str(_ROOT), module, *arguments]
