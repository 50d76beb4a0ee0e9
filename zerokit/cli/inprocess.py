"""Ask another command for its JSON inside this process."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from collections.abc import Sequence
from typing import Any

import click

from zerokit.cli import COMMANDS
from zerokit.errors import InputError


def json_of(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What ``zerokit NAME ARGUMENTS --json`` writes.

    Raises:
        ZerokitError: as the command raises it.
        InputError: the command refuses the arguments.
    """
    module = importlib.import_module(f"zerokit.cli.{COMMANDS[name][0]}")
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            module.command.main(
                args=[*arguments, "--json"], prog_name=f"zerokit {name}", standalone_mode=False
            )
    except click.ClickException as error:
        raise InputError(f"{name}: {error.format_message()}") from None
    answer = json.loads(written.getvalue())
    assert isinstance(answer, dict)
    return answer
