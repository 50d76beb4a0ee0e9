"""The models that a process holds: those beside the one that trains, and what of them is in host memory."""

from __future__ import annotations

import gc
import math
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_MAPPED_FILE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +/")
_MAPPING = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ")


def live_modules() -> list[Any]:
    """Every ``torch.nn.Module`` that is alive; 0.1 to 0.3 s."""
    module = sys.modules["torch"].nn.Module
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), module)]


def elements(parameter: Any) -> int:
    """Elements of a whole parameter, though this rank may hold a shard of it (ZeRO-3), or pack two into a
    byte (bitsandbytes 0.50, ``Params4bit``)."""
    unpacked = getattr(getattr(parameter, "quant_state", None), "shape", None)
    if unpacked is not None:
        return math.prod(unpacked)
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def parameters_beside(model: Any, modules: Iterable[Any]) -> int:
    """Elements of the weights that modules hold beside a model: of a teacher or a reference."""
    own_ids = {id(parameter) for parameter in model.parameters()}
    other_parameters = {
        id(parameter): parameter
        for module in modules
        for parameter in _attribute_values(module, "_parameters")
        if parameter is not None and parameter.device.type != "meta" and id(parameter) not in own_ids
    }
    return sum(map(elements, other_parameters.values()))


def resident_tensor_bytes(modules: Iterable[Any]) -> int:
    """Bytes in host memory of the modules' weights, their shards (ZeRO-3) and buffers, each once.

    Of weights that a file is mapped for (safetensors) only what was read yet is resident.
    """
    sizes: dict[int, int] = {}
    for module in modules:
        for tensor in (*_attribute_values(module, "_parameters"), *_attribute_values(module, "_buffers")):
            for part in (tensor, getattr(tensor, "ds_tensor", None)):
                if part is not None and part.device.type == "cpu":
                    storage = part.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values()) - _unread_bytes(sizes)


def _attribute_values(module: Any, name: str) -> Iterable[Any]:
    """A module's own tensors; none where its class has yet to make room for them."""
    return (getattr(module, name, None) or {}).values()


def _unread_bytes(sizes: dict[int, int]) -> int:
    """Bytes of storages, by address, in mapped files that are not resident."""
    addresses = sorted(sizes)
    unread = mapped = 0
    try:
        lines = Path("/proc/self/smaps").read_bytes().splitlines()
    except OSError:
        return 0
    for line in lines:
        if _MAPPING.match(line):
            header = _MAPPED_FILE.match(line)
            start, end = (int(header[1], 16), int(header[2], 16)) if header else (0, 0)
            inside = addresses[bisect_left(addresses, start) : bisect_left(addresses, end)]
            mapped = sum(sizes[name] for name in inside)
        elif mapped and line.startswith(b"Rss:"):
            unread += max(0, mapped - int(line.split()[1]) * 1024)
    return unread
