"""Versions that a run will have, read from what its machine or its lock file says, beside the ones here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.errors import InputError, about
from zerokit.machine.versions import DECIDING
from zerokit.strictload import read_text

_PINNED = re.compile(
    r"^[ \t]*([A-Za-z0-9][\w.-]*)[ \t]*(?:\[[^\]\n]*\][ \t]*)?===?[ \t]*([^\s;,#\\*]+)[ \t]*(?:$|[;#\\])",
    re.MULTILINE,
)
_BLOCK = re.compile(r"^\[\[packages?\]\][ \t]*$", re.MULTILINE)
_NAME = re.compile(r"^name\s*=\s*\"([^\"]+)\"", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*\"([^\"]+)\"", re.MULTILINE)


def read(path: Path) -> dict[str, str]:
    """Versions by package, of those that decide what is allocated.

    ``zerokit doctor --json``, ``pip list --format json``, ``pip freeze`` or requirements with exact versions,
    and the lock files of uv, Poetry and PEP 751.

    Raises:
        InputError: it cannot be read, or names no version of such a package.
    """
    with about("versions"):
        text = read_text(path)
    if text.lstrip().startswith(("{", "[{")):
        pairs = _of_json(path, text)
    elif _BLOCK.search(text):
        pairs = _of_lock(text)
    else:
        pairs = dict(_PINNED.findall(text))
    names = {_key(name): name for name in DECIDING}
    versions = {names[_key(name)]: version for name, version in pairs.items() if _key(name) in names}
    if not versions:
        raise InputError(
            f"⟨versions⟩ {path}: no exact version of {', '.join(DECIDING[:4])} or the like: give a lock "
            "file, requirements with ==, or what `zerokit doctor --json` printed on the machine of the run"
        )
    return versions


def differences(local: Mapping[str, str], remote: Mapping[str, str], source: str) -> tuple[str, ...]:
    """One sentence for each package whose version differs, or that only the run has. Builds of one version
    (``2.11.0+cu130``) are alike."""
    lines = []
    for name, version in remote.items():
        local_version = local.get(name)
        if local_version is None:
            lines.append(
                f"{name} {version} ({source}) is not installed here: libraries choose their code by what is "
                "installed, so the run may allocate otherwise"
            )
        elif _public(local_version) != _public(version):
            lines.append(
                f"{name} is {local_version} here and {version} in {source}: the run may allocate otherwise"
            )
    return tuple(lines)


def _of_json(path: Path, text: str) -> dict[str, str]:
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise InputError(f"⟨versions⟩ {path}: not JSON: {error}") from None
    if isinstance(document, dict):
        packages = document.get("packages")
        if isinstance(packages, dict):
            return {str(name): str(version) for name, version in packages.items() if version}
        document = packages if isinstance(packages, list) else []
    return {
        str(package["name"]): str(package["version"])
        for package in document
        if isinstance(package, dict) and package.get("name") and package.get("version")
    }


def _of_lock(text: str) -> dict[str, str]:
    versions = {}
    for block in _BLOCK.split(text)[1:]:
        name, version = _NAME.search(block), _VERSION.search(block)
        if name is not None and version is not None:
            versions[name[1]] = version[1]
    return versions


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _public(version: str) -> str:
    return version.partition("+")[0]
