"""The committed tables of keys, one for each minor version of DeepSpeed that people run."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.errors import InputError


class Tables:
    """The tables of keys of one package, in files beside each other: of one version at a time is checked.
    ``folder``: holds ``NAME-VERSION.json``, which ``python -m tools.deepspeed_keys`` writes. ``default``: the
    version that is checked for unless another is chosen."""

    def __init__(self, folder: pathlib.Path, name: str, default: str) -> None:
        self._folder, self.name = folder, name
        self._chosen = contextvars.ContextVar(name, default=default)
        self._load = functools.cache(self._read)

    @functools.cached_property
    def versions(self) -> Mapping[tuple[int, int], str]:
        """The versions that there are tables of, by their minor version."""
        found = [path.stem.partition("-")[2] for path in self._folder.glob(f"{self.name}-*.json")]
        return {minor(text): text for text in sorted(found, key=minor)}

    def version(self) -> str:
        """The version whose table is read."""
        return self._chosen.get()

    def key_list(self) -> Mapping[str, Any]:
        """The table of the version that is checked for."""
        return self._load(self._chosen.get())

    @contextlib.contextmanager
    def chosen(self, version: str) -> Iterator[None]:
        """Inside, check for another version. Raises InputError: there is no table for it."""
        token = self._chosen.set(nearest_table(version, self.versions))
        try:
            yield
        finally:
            self._chosen.reset(token)

    def _read(self, version: str) -> Mapping[str, Any]:
        text = (self._folder / f"{self.name}-{version}.json").read_text(encoding="utf-8")
        loaded: Mapping[str, Any] = json.loads(text)
        return loaded


def minor(text: str) -> tuple[int, int]:
    """``(0, 19)`` of ``0.19.8``. Raises InputError: it is no version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise InputError(f"{text!r} is not a version; write one such as {DEEPSPEED_VERSION}")
    return int(match[1]), int(match[2])


def nearest_table(version: str, tables_by_release: Mapping[tuple[int, int], str]) -> str:
    """The version whose table serves for ``version``: its minor version's, or the newest for a newer one.
    Raises InputError: it is older than every table."""
    requested = minor(version)
    if requested > max(tables_by_release):
        return tables_by_release[max(tables_by_release)]
    if requested not in tables_by_release:
        listed = ", ".join(f"{major}.{least}" for major, least in sorted(tables_by_release))
        raise InputError(f"there is no table of keys for {version}; there are tables for {listed}")
    return tables_by_release[requested]


TABLES = Tables(pathlib.Path(__file__).parent, "deepspeed", DEEPSPEED_VERSION)
key_list, version = TABLES.key_list, TABLES.version


def has_key(dotted: str) -> bool:
    """Whether DeepSpeed reads a key of this path: ``zero_optimization.stage``."""
    block, _, name = dotted.rpartition(".")
    return name in key_list()["blocks"].get(block, {"keys": ()})["keys"]


_COMMON_NAMES = frozenset((
    "enabled", "device", "type", "params", "dtype", "profile", "seed", "throughput", "offload", "name",
    "mode",
))  # fmt: skip


@functools.cache
def homes_in(_version: str, key: str) -> tuple[str, ...]:
    """Blocks that do have a key of this name, when that leaves no doubt."""
    if key in _COMMON_NAMES:
        return ()
    aliases = {"bfloat16", "tensor_parallel.tp", "tensor_parallel.tensor_parallel"}
    blocks = key_list()["blocks"]
    homes = [name for name, block in blocks.items() if key in block["keys"] and name not in aliases]
    return tuple(homes) if len(homes) == 1 else ()
