"""Libraries that take another path where Triton is missing, as it is beside CPU builds of PyTorch."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Collection
from pathlib import Path

_NAMES = re.compile(
    rb"(?:import|from) triton\b|[\"']triton[\"']|(?:is|has|have|with|use)_triton", re.IGNORECASE
)
"""An import, a look-up, a flag: the word alone is physics too (SciPy's constants)."""
_SPOKEN_OF = frozenset({"torch", "transformers", "accelerate", "deepspeed", "triton", "zerokit"})
"""``torch.compile`` has a warning of its own; the others ask for it, or for kernels of quantised weights."""


def note(idle: Collection[str] = ()) -> str | None:
    """What the reader must know, where Triton is missing and loaded code names it; else None.

    Args:
        idle: packages that were loaded and computed nothing, such as a bitsandbytes that PEFT imports.

    TRL 1.16's losses take their Triton kernels by ``is_triton_available`` (``trl/trainer/utils.py``): without
    it their backward allocates more.
    """
    if importlib.util.find_spec("triton") is not None:
        return None
    packages = {name.partition(".")[0] for name in list(sys.modules) if _names_triton(name)} - {*idle}
    if not packages:
        return None
    names = sorted("the script" if name == "__main__" else name for name in packages)
    return (
        f"Triton is not installed here, as it is beside PyTorch's CUDA builds: {', '.join(names)} may have "
        "run other code than on the GPU, with other memory and times (pip install triton)"
    )


def _names_triton(name: str) -> bool:
    """Whether a loaded module's source does."""
    package = name.partition(".")[0]
    if package in _SPOKEN_OF or package in sys.stdlib_module_names:
        return False
    path = getattr(sys.modules[name], "__file__", None)
    try:
        return (
            path is not None and path.endswith(".py") and _NAMES.search(Path(path).read_bytes()) is not None
        )
    except OSError:
        return False
