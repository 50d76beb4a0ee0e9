"""``zerokit launch``: run a training script under DeepSpeed with a plan, and measure it."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.base import ScriptCommand, no_script
from zerokit.cli.options import declared, groups
from zerokit.cli.say import echo, is_loud, say, write
from zerokit.launcher.options import LaunchArguments
from zerokit.messages import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from zerokit.report.schema import RunReport

_IS_OVERRIDE = re.compile(r"[a-z][a-z_-]*=")


@click.command(
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Options after the script are the script's own, and reach it verbatim.",
    groups=groups(LaunchArguments),
)
@declared(LaunchArguments)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT, unmodified, under DeepSpeed with a plan; supervise it, and measure every rank.

    The run folder holds the plan, the configuration and command used, the output of every rank, and
    the report: predicted beside measured.
    """
    from zerokit.api import run_launch
    from zerokit.launcher.attempts import DryRun, Listener
    from zerokit.script import entry_points

    asked = LaunchArguments(**options, say=say)
    overrides: tuple[str, ...] = ()
    if asked.recipe and asked.module is None:
        count = len(tuple(itertools.takewhile(_IS_OVERRIDE.match, arguments)))
        overrides, arguments = arguments[:count], arguments[count:]
    if asked.module is None and not arguments:
        raise no_script("--plan DIR")
    resolved = entry_points.target_of(asked.module, arguments)
    if resolved.note is not None:
        say(resolved.note)
    listener = Listener(say=say, show=_show, failure=_print_failure)
    result = run_launch(
        asked, resolved.target, overrides=overrides, show_progress=is_loud(), listener=listener
    )
    if isinstance(result, DryRun):
        for name in result.unset:
            write(f"unset {name}")
        for name, value in sorted(result.environment.items()):
            write(f"export {name}={quoted(value)}")
        write(" ".join(map(quoted, result.argv)))
        what = "plan, script" if result.has_plan else "script"
        untold = f"`zerokit rehearse` with the same {what} and arguments runs it on simulated GPUs"
        rehearsed = _REHEARSED.get(result.rehearsal, untold)
        say(f"a dry run does not start the script, so it misses errors of the script's own; {rehearsed}")
        return 0
    return result.exit_code


_REHEARSED = {
    "done": "the plan's rehearsal ran the script with these options",
    "other devices": "the plan's rehearsal ran the script with these options, on the plan's GPUs",
    "named": "the `zerokit plan` command above rehearses it",
}


def _print_failure(text: str) -> None:
    with suppress(OSError):
        echo(text)


def _show(report: RunReport, folder: Path) -> None:
    """Print the table; a reader that went away must not turn a failed run into exit code 0."""
    import sys

    from zerokit.report.render import print_report

    try:
        # without its traceback: the failed rank's own output is on the terminal
        print_report(report, traceback=False, folder=folder)
        sys.stdout.flush()
    except (OSError, SystemExit):  # rich ends the process with 1 at a broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
