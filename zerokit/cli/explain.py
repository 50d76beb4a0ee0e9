"""``zerokit explain``: say what a PyTorch memory snapshot holds, by phase, module and line."""

from __future__ import annotations

import time
from pathlib import Path

import click

from zerokit.cli import prose
from zerokit.cli.base import Command
from zerokit.cli.say import write, write_json
from zerokit.errors import InputError


@click.command(
    cls=Command,
    epilog="Example: zerokit explain oom.pickle --rehearsal rehearsal.json",
)
@click.argument("snapshots", metavar="SNAPSHOT [LATER]", nargs=-1)
@click.option("--rehearsal", metavar="FILE", help="Show what `zerokit rehearse --json` predicted beside it.")
@click.option("--html", metavar="FILE", help="Write the result as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def command(snapshots: tuple[str, ...], rehearsal: str | None, html: str | None, as_json: bool) -> None:
    """Say what filled the GPU in SNAPSHOT, a file of torch.cuda.memory._dump_snapshot; of two, what grew.

    Peak by phase, module and line, what stays from step to step, what is free in pieces, and why an
    allocation failed. Nothing of the file is run, and PyTorch is not needed.
    """
    from zerokit.api import explain
    from zerokit.snapshots.sections import answer, sections

    if not 1 <= len(snapshots) <= 2:
        raise InputError("explain: name one snapshot, or two to compare: zerokit explain oom.pickle")
    read = [Path(path).resolve() for path in (*snapshots, rehearsal) if path is not None]
    if html is not None and Path(html).resolve() in read:
        raise InputError(f"⟨html⟩ {html}: the page would replace this file; name another")
    told = explain(*snapshots, rehearsal=rehearsal)
    if html is not None:
        from zerokit.report.html import write_page
        from zerokit.snapshots.html import render_html

        write_page(Path(html), render_html(told, time.time()))
    if as_json:
        write_json(told.to_dict())
        return
    for line in answer(told):
        write("\n".join(prose.wrapped(line)))
    for note in told.notes:
        write("\n".join(prose.wrapped(f"{note.level}: {note}")))
    for section in sections(told):
        prose.show_section(section)
