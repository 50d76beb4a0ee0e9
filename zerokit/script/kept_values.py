"""What a Trainer's class makes of arguments, kept in the user's cache: to ask it takes seconds of imports."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerokit.domain.environment import OF_A_SESSION
from zerokit.files import cache_folder, read_regular, remove_oldest, write_whole
from zerokit.machine.versions import DECIDING, installed

_MOST_BYTES, _MOST_ENTRIES = 1 << 20, 200
_SHORTEST_SECRET = 8


def kept_values(
    order: Mapping[str, Any], environment: Mapping[str, str], ask: Callable[[], dict[str, object]]
) -> dict[str, object]:
    """The kept values, where arguments, variables, files and libraries are as they were; else what ``ask``
    tells, which is kept if it tells anything.

    No text of the arguments is written, as it may be a secret: only where it stands among them. One that the
    class made of such a text (a folder in the output folder) is left out.
    """
    words = _words(order["arguments"])
    path = cache_folder() / "arguments" / f"{_key(order, environment)}.json"
    with suppress(OSError, ValueError, TypeError, AttributeError, IndexError):
        kept = json.loads(read_regular(path, _MOST_BYTES, path.parent))
        os.utime(path)
        return {name: words[one[0]] if isinstance(one, list) else one for name, one in kept.items()}
    places = {word: number for number, word in enumerate(words)}
    long = [word for word in words if len(word) >= _SHORTEST_SECRET]
    values = {
        name: value
        for name, value in ask().items()
        if not isinstance(value, str) or value in places or not any(word in value for word in long)
    }
    if values and not any(word.startswith("--config") for word in words):  # a file's texts may be secrets too
        kept = {name: [places[one]] if one in places else one for name, one in values.items()}
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, json.dumps(kept), durable=False, mode=0o600)
            remove_oldest(path.parent, _MOST_ENTRIES, _MOST_ENTRIES * _MOST_BYTES)
    return values


def _words(arguments: list[str]) -> list[str]:
    """The arguments, and the values that stand behind an option's ``=``."""
    return [*arguments, *(word.partition("=")[2] for word in arguments)]


def _key(order: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    files = {word: _digest(word) for word in _words(order["arguments"]) if word and os.path.isfile(word)}  # noqa: PTH113
    variables = sorted((n, v) for n, v in environment.items() if not OF_A_SESSION.fullmatch(n))
    facts = [order, variables, files, str(Path.cwd()), sys.executable, sys.version,
             [installed(name) for name in DECIDING], list(_sources(order["classes"]))]  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()[
        :32
    ]


def _digest(path: str) -> str:
    with suppress(OSError):
        return hashlib.sha256(read_regular(path, _MOST_BYTES, "/")).hexdigest()
    return "too large"


def _sources(classes: list[str]) -> Iterator[list[Any]]:
    """The files that hold the classes, as they are."""
    for package in sorted({name.partition(".")[0] for name in classes} | {"transformers"}):
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            for folder in (spec.submodule_search_locations if spec is not None else None) or ():
                for path in sorted(
                    Path(folder).rglob("*.py") if package != "transformers" else Path(folder).glob("*.py")
                ):
                    status = path.stat()
                    yield [str(path), status.st_size, status.st_mtime_ns]
