"""``zerokit rehearse``: run a script on a simulated GPU to predict its memory and step time."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from zerokit.cli import prose
from zerokit.cli.base import WORDS, ScriptCommand, no_script
from zerokit.cli.options import declared, groups
from zerokit.cli.prose import wrapped
from zerokit.cli.say import say, write, write_json
from zerokit.files import write_whole
from zerokit.messages import github_annotation, program
from zerokit.rehearsal.changes import NextStep
from zerokit.rehearsal.options import RehearsalArguments
from zerokit.rehearsal.result import Growth, Rehearsal, SinceBaseline
from zerokit.rehearsal.sections import sections
from zerokit.units import format_gib

_MOST_CARDS = 3


def show(done: Rehearsal, following: Sequence[NextStep] = ()) -> None:
    """Peaks, what is live at the largest, guesses, and the verdict; no wider than the terminal.
    ``following``: what to type where the script as it is does not fit."""
    if done.fed is not None:
        _echo(f"fed: {done.fed.text}")
        for warning in done.of_feed:
            _echo(f"warning: {warning}")
    for note in done.notes:
        _echo(note)
    if done.trained_by:
        _echo(done.trained_by)
    _echo(f"versions: {', '.join(f'{name} {version}' for name, version in done.versions.items())}")
    for section in sections(done):
        prose.show_section(section)
    for warning in done.warnings:
        if warning not in done.of_feed:
            _echo(f"warning: {warning}")
    write()
    _echo(done.verdict, indent="")
    if done.baseline is not None:
        _show_baseline(done.baseline)
    if done.fits is None and done.complete and done.min_vram_bytes is not None:
        write("\nNext")
        _echo(_names_a_card(done.min_vram_bytes, bf16=done.bf16))
    if following:
        write("\nNext")
    for step in following:
        _echo(f"{step.purpose}:")
        write("\n".join(prose.command_lines(shlex.join(step.words))))


def _show_baseline(since: SinceBaseline) -> None:
    """What grew since the baseline; in a job of GitHub's as annotations of its lines, too."""
    write()
    _echo(since.text, indent="")
    for growth in since.grown:
        _echo(growth.title)
        for part in growth.parts:
            _echo(part.text, indent="    ")
    if since.grown and since.versions:
        unlike = ", ".join(f"{name} {old or 'none'} → {new}" for name, (old, new) in since.versions.items())
        _echo(f"other versions than the baseline's: {unlike}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for growth in since.grown:
            click.echo(_annotation(growth))


def _annotation(growth: Growth) -> str:
    """Of the line that holds most of what grew, where that is a file's below the working folder."""
    text = "\n".join((growth.title, *(part.text for part in growth.parts)))
    file, _, line = growth.parts[0].location.rpartition(":") if growth.parts else ("", "", "")
    known = bool(file) and Path(file).is_file()
    return github_annotation(
        "error", text, file=file if known else None, line=line if known else None,
        title="zerokit rehearse",
    )  # fmt: skip


def _names_a_card(required_bytes: int, *, bf16: bool) -> str:
    """What to add so that the answer is whether it fits, with the smallest cards that would hold it; those
    that have it, where the script computes in bf16, which Transformers and DeepSpeed refuse on others."""
    from zerokit.catalog import gpus

    large = [
        gpu
        for gpu in gpus.catalog()
        if gpu.chip and gpu.driver_vram_bytes >= required_bytes and (gpu.supports("bf16") or not bf16)
    ]
    smallest = sorted(large, key=lambda gpu: gpu.driver_vram_bytes)[:_MOST_CARDS]
    named = ", ".join(f"{gpu.name} ({format_gib(gpu.driver_vram_bytes, 1)})" for gpu in smallest)
    which = " with bf16" if bf16 else ""
    holds = (
        f"the smallest{which} that hold this: {named}" if named else "no card of `zerokit gpus` holds this"
    )
    return f"add --gpu NAME or --vram SIZE, and it is said whether it fits; {holds}"


def _echo(text: str, indent: str = "  ") -> None:
    """A line, with what does not fit the terminal below it."""
    write("\n".join(wrapped(text, indent, indent + "  ")))


@click.command(
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Example: zerokit rehearse --gpus 8 --gpu h100-sxm-80gb train.py --deepspeed ds_config.json",
    groups=groups(RehearsalArguments),
)
@declared(RehearsalArguments)
@click.option("--html", metavar="FILE", help="Write the result as a page.")
@click.option("--markdown", metavar="FILE", help="Append a summary to FILE, such as $GITHUB_STEP_SUMMARY.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT, unmodified, as one rank of N on a simulated GPU.

    No GPU, no weights and no arithmetic: every allocation goes through a model of PyTorch's caching
    allocator. Nothing is written, downloaded or pushed.
    """
    from zerokit.rehearsal.baseline import append_summary
    from zerokit.rehearsal.changes import next_steps
    from zerokit.rehearsal.request import rehearse
    from zerokit.script import entry_points

    as_json, html, summary = options.pop("as_json"), options.pop("html"), options.pop("markdown")
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
    if summary is not None:
        append_summary(Path(summary), done, resolved.target.name)
    if as_json:
        write_json(done.to_dict())
    else:
        given = (("--gpus", asked.gpus or 1), ("--gpu", asked.gpu), ("--vram", asked.vram))
        hardware = [word for name, value in given if value is not None for word in (name, str(value))]
        words = click.get_current_context().meta[WORDS]
        show(done, () if asked.plan else next_steps(done, resolved.target, hardware, words))
    return done.exit_code


def _write_page(path: Path, done: Rehearsal, script: str, plan: str | None) -> None:
    from zerokit.launcher.secrets import Secrets
    from zerokit.rehearsal.html import RehearsalPage, render_html
    from zerokit.report.html import write_page

    words = click.get_current_context().meta[WORDS]
    page = RehearsalPage(
        script=script, command=Secrets(os.environ, words).argv(words), plan=plan, program=program(),
        written_at=time.time(),
    )  # fmt: skip
    write_page(path, render_html(done, page))
