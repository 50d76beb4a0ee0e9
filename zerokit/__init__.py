"""zerokit: plan, launch and measure DeepSpeed training before the GPU hours are spent."""

import os
import sys

# ``python -m zerokit`` puts the working folder first: its typing.py or yaml.py must not become ours. Both of
# the modules above are loaded by then; the package is found, and its modules are looked up beside this file.
if sys.argv[:1] == ["-m"] and "zerokit" in sys.orig_argv[2:] and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
    del sys.path[0]
    if (root := os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) not in sys.path:  # noqa: PTH100, PTH120
        sys.path.append(root)  # not installed: run from a checkout

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__", "compare", "phase", "selective_checkpointing", "snapshot"]

if TYPE_CHECKING:
    from zerokit.instrument.script_api import compare, phase, snapshot

    selective_checkpointing: Any


def __getattr__(name: str) -> Any:
    # the command line must not pay for what only a training script uses
    if name == "selective_checkpointing":  # by name: what lies below this package must not see torch's part
        from importlib import import_module

        return import_module("zerokit.trace.recording.selective").selective_checkpointing
    if name in ("compare", "phase", "snapshot"):
        from zerokit.instrument import script_api

        return getattr(script_api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
