"""zerokit: plan, launch and measure DeepSpeed training before the GPU hours are spent.

``plan``, ``estimate``, ``size``, ``check``, ``convert``, ``rehearse``, ``explain``, ``launch``,
``tune``:
:mod:`zerokit.api`. Inside a training script: ``phase``, ``snapshot``, ``compare``
(:mod:`zerokit.instrument.script_api`) and ``selective_checkpointing``. Around several rehearsals:
``shared_imports``. Each is imported when it is first asked for.
"""

import os
import sys

# ``python -m zerokit`` puts the working folder first: its typing.py or yaml.py must not become ours. Both of
# the modules above are loaded by then; the package is found, and its modules are looked up beside this file.
if sys.argv[:1] == ["-m"] and "zerokit" in sys.orig_argv[2:] and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
    del sys.path[0]
    if (root := os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) not in sys.path:  # noqa: PTH100, PTH120
        sys.path.append(root)  # not installed: run from a checkout

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "check",
    "compare",
    "convert",
    "estimate",
    "explain",
    "launch",
    "phase",
    "plan",
    "rehearse",
    "selective_checkpointing",
    "shared_imports",
    "size",
    "snapshot",
    "tune",
]

if TYPE_CHECKING:
    from zerokit.api import check, convert, estimate, explain, launch, plan, rehearse, size, tune
    from zerokit.instrument.script_api import compare, phase, snapshot
    from zerokit.rehearsal.zygote import shared_imports
    from zerokit.trace.recording.selective import selective_checkpointing

_ROOM_OF = {
    **dict.fromkeys(
        ("check", "convert", "estimate", "explain", "launch", "plan", "rehearse", "size", "tune"),
        "zerokit.api",
    ),
    **dict.fromkeys(("compare", "phase", "snapshot"), "zerokit.instrument.script_api"),
    "selective_checkpointing": "zerokit.trace.recording.selective",
    "shared_imports": "zerokit.rehearsal.zygote",
}


def __getattr__(name: str) -> object:
    # the command line must not pay for what only a program uses, nor a training script for the planner
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function: object = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted(__all__)
