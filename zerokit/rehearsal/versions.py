"""Versions that a run will have, read from what its machine or its lock file says, beside the ones here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.machine.versions import DECIDING

_PINNED = re.compile(
    r"^\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*===?\s*([^\s;,#\\*]+)\s*(?:$|[;#\\])", re.MULTILINE
)
_BLOCK = re.compile(r"^\[\[packages?\]\]\s*$", re.MULTILINE)
_NAME = re.compile(r"^name\s*=\s*\"([^\"]+)\"", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*\"([^\"]+)\"", re.MULTILINE)


def read(path: Path) -> dict[str, str]:
    """Versions by package, of those that decide what is allocated.

    ``zerokit doctor --json``, ``pip list --format json``, ``pip freeze`` or requirements with exact versions,
    and the lock files of uv, Poetry and PEP 751.

    Raises:
        InputError: it cannot be read, or names no version of such a package.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"⟨versions⟩ {path}: cannot be read: {error}") from None
    if text.lstrip().startswith(("{", "[{")):
        pairs = _of_json(path, text)
    elif _BLOCK.search(text):
        pairs = _of_lock(text)
    else:
        pairs = dict(_PINNED.findall(text))
    wanted = {_key(name): name for name in DECIDING}
    found = {wanted[_key(name)]: version for name, version in pairs.items() if _key(name) in wanted}
    if not found:
        raise InputError(
            f"⟨versions⟩ {path}: no exact version of {', '.join(DECIDING[:4])} or the like: give a lock "
            "file, requirements with ==, or what `zerokit doctor --json` printed on the machine of the run"
        )
    return found


def differences(here: Mapping[str, str], there: Mapping[str, str], source: str) -> tuple[str, ...]:
    """One sentence for each package whose version differs, or that only the run has. Builds of one version
    (``2.11.0+cu130``) are alike."""
    told = []
    for name, version in there.items():
        own = here.get(name)
        if own is None:
            told.append(
                f"{name} {version} ({source}) is not installed here: libraries choose their code by what is "
                "installed, so the run may allocate otherwise"
            )
        elif _public(own) != _public(version):
            told.append(f"{name} is {own} here and {version} in {source}: the run may allocate otherwise")
    return tuple(told)


def _of_json(path: Path, text: str) -> dict[str, str]:
    try:
        said: Any = json.loads(text)
    except ValueError as error:
        raise InputError(f"⟨versions⟩ {path}: not JSON: {error}") from None
    if isinstance(said, dict):
        packages = said.get("packages")
        if isinstance(packages, dict):
            return {str(name): str(version) for name, version in packages.items() if version}
        said = packages if isinstance(packages, list) else []
    return {
        str(each["name"]): str(each["version"])
        for each in said
        if isinstance(each, dict) and each.get("name") and each.get("version")
    }


def _of_lock(text: str) -> dict[str, str]:
    found = {}
    for block in _BLOCK.split(text)[1:]:
        name, version = _NAME.search(block), _VERSION.search(block)
        if name is not None and version is not None:
            found[name[1]] = version[1]
    return found


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _public(version: str) -> str:
    return version.partition("+")[0]
