"""Values of a script's arguments that its command line does not show: of files, and of its class."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.files import read_regular
from zerokit.script.kept_values import kept_values
from zerokit.script.reader import ARGUMENT_FILES, ScriptFacts

_PARSE_SECONDS = 120.0
_LARGEST_FILE_BYTES = 1 << 20
_SHOULD_NOT_SEE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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
        if isinstance(body, dict):
            values = {str(key): value for key, value in body.items()}
            for section in body.values():
                if isinstance(section, dict):
                    values = {**{str(key): value for key, value in section.items()}, **values}
            return values
    return {}


Parser = Callable[[dict[str, Any], dict[str, str], float], Mapping[str, object] | None]
"""The values of an order for :func:`zerokit.script.parse_only.parse`, with these variables and within so many
seconds; None: it cannot tell."""
_PARSER: ContextVar[Parser | None] = ContextVar("_PARSER", default=None)


@contextmanager
def parsed_by(parser: Parser) -> Iterator[None]:
    """In this block another process than a new one is asked first: one that has the libraries already."""
    token = _PARSER.set(parser)
    try:
        yield
    finally:
        _PARSER.reset(token)


def installed_values(facts: ScriptFacts, arguments: Sequence[str]) -> dict[str, object]:
    """What TRL's arguments class that the script parses makes of these arguments; empty where not known."""
    classes = [name for name in facts.argument_classes if name.startswith("trl.")]
    if not facts.parses_training_arguments or not classes:
        return {}
    return values_of_class(classes, facts, arguments)


def values_of_class(
    classes: Sequence[str], facts: ScriptFacts, arguments: Sequence[str]
) -> dict[str, object]:
    """What the one class of training arguments among these makes of arguments; empty where not known.

    Runs the installed parser in a process of its own, for some seconds; no code of the script's runs.

    Args:
        classes: such as ``trl.SFTConfig``.
    """
    order = {"classes": list(classes), "trl": "TrlParser" in facts.mentions, "arguments": list(arguments)}
    environment = {name: value for name, value in os.environ.items() if name not in _SHOULD_NOT_SEE}
    environment = {n: v for n, v in environment.items() if not n.startswith("ACCELERATE_")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return kept_values(order, environment, partial(_asked, order, environment))


def _asked(order: dict[str, Any], environment: dict[str, str]) -> dict[str, object]:
    parser = _PARSER.get()
    if parser is not None and (told := parser(order, environment, _PARSE_SECONDS)) is not None:
        return dict(told)
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(Path(__file__).with_name("parse_only.py"))],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            env=environment,
            timeout=_PARSE_SECONDS,
            check=True,
        )
        values = json.loads(done.stdout.splitlines()[-1])["values"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return {}
    return dict(values)


def means(option: str, spelt: set[str], exact: frozenset[str] | None) -> bool:
    """Whether ``option`` is one that is ``spelt`` so, or argparse takes it for one.

    argparse takes any beginning of an option that it has and that is no other of them itself, and ends where
    several begin so. ``exact``: all that the script's parser has; None where that is not argparse.
    """
    if option in spelt or exact is None or option in exact:
        return option in spelt
    known = spelt & exact
    return option.startswith("--") and len(option) > len("--b") and any(e.startswith(option) for e in known)
