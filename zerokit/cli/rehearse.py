"""``zerokit rehearse``: run a script on a simulated GPU to predict its memory and step time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.base import WORDS
from zerokit.cli.options import declared, groups
from zerokit.cli.say import say, write_json
from zerokit.cli.script_command import ScriptCommand, no_script
from zerokit.files import write_whole
from zerokit.rehearsal.options import RehearsalArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerokit.rehearsal.changes import NextStep
    from zerokit.rehearsal.result import Rehearsal
    from zerokit.script.entry_points import Target


@click.command(
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Example: zerokit rehearse --gpus 8 --gpu h100-sxm-80gb train.py --deepspeed ds_config.json",
    groups=groups(RehearsalArguments),
)
@declared(RehearsalArguments)
@click.option("--html", metavar="FILE", help="Write the result as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT, unmodified, as one rank of N on a simulated GPU.

    No GPU, no weights and no arithmetic: every allocation goes through a model of PyTorch's caching
    allocator. Nothing is written, downloaded or pushed.
    """
    from zerokit.rehearsal.request import rehearse
    from zerokit.script import entry_points

    as_json, html = options.pop("as_json"), options.pop("html")
    asked = RehearsalArguments(**options, say=say)
    if asked.module is None and not arguments:
        raise no_script("--gpu h200")
    resolved = entry_points.target_of(asked.module, arguments, "rehearse")
    if resolved.note is not None:
        say(resolved.note)
    done = rehearse(resolved.target, asked)
    if asked.out is not None:
        write_whole(Path(asked.out) / "rehearsal.json", json.dumps(done.to_dict(), indent=1))
    if html is not None:
        _write_page(Path(html), done, asked.module or arguments[0], options["plan"])
    if as_json:
        write_json(done.to_dict())
    else:
        from zerokit.cli.rehearsal_show import show

        show(done, _following(done, resolved.target, options))
    return done.exit_code


def _following(done: Rehearsal, target: Target, options: dict[str, Any]) -> Sequence[NextStep]:
    """What to type next, for the same script on the same GPUs."""
    from zerokit.rehearsal.changes import next_steps

    if options["plan"]:
        return ()
    given = (("--gpus", options["gpus"] or 1), ("--gpu", options["gpu"]), ("--vram", options["vram"]))
    hardware = [word for name, value in given if value is not None for word in (name, str(value))]
    return next_steps(done, target, hardware, click.get_current_context().meta[WORDS])


def _write_page(path: Path, done: Rehearsal, script: str, plan: str | None) -> None:
    import os
    import time

    from zerokit.launcher.secrets import Secrets
    from zerokit.messages import program
    from zerokit.rehearsal.html import RehearsalPage, write_html

    words = click.get_current_context().meta[WORDS]
    page = RehearsalPage(
        script=script, command=Secrets(os.environ, words).argv(words), plan=plan, program=program(),
        written_at=time.time(),
    )  # fmt: skip
    write_html(path, done, page)
