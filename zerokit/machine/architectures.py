"""``TORCH_CUDA_ARCH_LIST``: the GPU architectures that PyTorch's extensions are compiled for.

DeepSpeed reads only plain numbers in it (``9.0``, ``9.0+PTX``): ``op_builder/builder.py:710`` of 0.19.8
makes integers of their parts. PyTorch also takes ``9.0a`` and ``Hopper`` (``utils/cpp_extension.py``), and
images set them; the first operator that DeepSpeed compiles or loads then ends in a ValueError.
"""

from __future__ import annotations

import re

VARIABLE = "TORCH_CUDA_ARCH_LIST"
_PLAIN = r"\d+\.\d+(\+PTX)?"
_ENTRY = re.compile(r"(\d+\.\d+)[a-z]?(\+PTX)?")
UNREADABLE = rf"(?!\s*{_PLAIN}([;\s]+{_PLAIN})*[;\s]*$).+"
"""A pattern for whole lists with an entry that DeepSpeed fails on."""


def unreadable(value: str) -> list[str]:
    """The entries of a list that DeepSpeed fails on, in their order."""
    return [entry for entry in _entries(value) if not re.fullmatch(_PLAIN, entry)]


def readable(value: str) -> str:
    """The list with plain numbers only; empty when none is left, and DeepSpeed asks the GPUs themselves.
    ``9.0a`` becomes ``9.0``: DeepSpeed's operators use nothing that only ``9.0a`` has. Names are left out."""
    matches = [match for entry in _entries(value) if (match := _ENTRY.fullmatch(entry))]
    return ";".join(dict.fromkeys(match[1] + (match[2] or "") for match in matches))


def _entries(value: str) -> list[str]:
    return value.replace(";", " ").split()
