"""Values of a script's arguments that its command line does not show: those of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.files import read_regular
from zerokit.script.reader import ARGUMENT_FILES, ScriptFacts

_LARGEST_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentFile:
    """A JSON or YAML file with the values of options.

    Attributes:
        replaces_options: it stands in the place of all options, so none can be added beside it.
    """

    path: str
    replaces_options: bool
    values: Mapping[str, object] = field(default_factory=dict)


def argument_file(arguments: Sequence[str], facts: ScriptFacts) -> ArgumentFile | None:
    """The file that ``--config FILE`` names, or the one given in place of all options.

    Raises:
        InputError: a script that parses TrainingArguments would read it, and it does not exist.
    """
    parses = facts.parses_training_arguments or not facts.options
    first = arguments[0] if arguments else ""
    if first.endswith(ARGUMENT_FILES) and not first.startswith("-") and parses:
        _check_exists(first, facts, first)
        return ArgumentFile(path=first, replaces_options=True, values=_read(first))
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config" and (equals or index + 1 < len(arguments)):
            path = value if equals else arguments[index + 1]
            if path.endswith(ARGUMENT_FILES):
                _check_exists(path, facts, f"--config {path}")
                return ArgumentFile(path=path, replaces_options=False, values=_read(path))
    return None


def _check_exists(path: str, facts: ScriptFacts, option: str) -> None:
    """Other scripts may look for it in a folder of their own, and some tools take an address."""
    if facts.parses_training_arguments and "://" not in path and not Path(path).exists():
        raise InputError(
            f"{option}: the script's arguments file {Path(path).absolute()} does not exist; correct the path"
        )


def _read(name: str) -> dict[str, object]:
    """Keys at the top, and those of sections where they say nothing else; empty if it cannot be read
    (then the script itself will say why)."""
    path = Path(name)
    with suppress(OSError, ValueError, RecursionError):
        text = read_regular(path, _LARGEST_FILE_BYTES).decode("utf-8-sig")
        if path.suffix == ".json":
            body: Any = json.loads(text)
        else:
            import yaml

            try:
                body = yaml.safe_load(text)
            except yaml.YAMLError:
                return {}
        values: dict[str, object] = {}
        for section in (body, *body.values()) if isinstance(body, dict) else ():
            if isinstance(section, dict):
                values = {**{str(key): value for key, value in section.items()}, **values}
        return values
    return {}


def means(option: str, spelt: set[str], exact: frozenset[str] | None) -> bool:
    """Whether ``option`` is one that is ``spelt`` so, or argparse takes it for one.

    argparse takes any beginning of an option that it has and that is no other of them itself, and ends where
    several begin so. ``exact``: all that the script's parser has; None where that is not argparse.
    """
    if option in spelt or exact is None or option in exact:
        return option in spelt
    known = spelt & exact
    return option.startswith("--") and len(option) > len("--b") and any(e.startswith(option) for e in known)
