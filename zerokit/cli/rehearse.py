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
from zerokit.cli.prose import terminal_width, wrapped
from zerokit.cli.say import say, write, write_json
from zerokit.files import write_whole
from zerokit.messages import github_annotation, program
from zerokit.rehearsal.changes import NextStep
from zerokit.rehearsal.options import RehearsalArguments
from zerokit.rehearsal.result import (
    MANAGED,
    Growth,
    GuessedValue,
    HeldAtPeak,
    RankMemory,
    Rehearsal,
    SinceBaseline,
    waiting,
)
from zerokit.timing.recorded_step import StepTime
from zerokit.units import counted, format_gib, format_seconds, times

_MOST_ROWS = 12
_MOST_GUESSES = 10
_MOST_CHANGES = 5
_MOST_CARDS = 3
_NOT_ONLY_EVALUATION = "forwards without gradients: evaluation, or a reference model"
_LOADED = "weights of from_pretrained"
_PACED = {"host": "host", "gpu": "GPU", "links": "links", "cpu_adam": "host's optimizer"}


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
    for rank in done.ranks:
        if rank.phases or done.steps:
            _show_rank(rank, done)
    if done.changes:
        write("\n  what would lower the peak, by at most")
        for change in done.changes[:_MOST_CHANGES]:
            write("\n".join(wrapped(change.what, f"  {format_gib(change.saves_bytes):>12}  ", " " * 18)))
    if done.step is not None:
        _show_step(done.step)
    _show_guesses(done.guesses)
    for name in done.stubbed:
        _echo(f"stood in for: {name}")
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


def _show_rank(rank: RankMemory, done: Rehearsal) -> None:
    write()
    _echo(f"rank {rank.rank} of {done.gpus} on {done.gpu}, {done.training}", indent="")
    for phase, size in rank.phases.items():
        mark = "← peak" if phase == rank.peak_phase else ""
        meaning = _NOT_ONLY_EVALUATION if phase == "eval" else ""
        missing = rank.lower_bounds.get(phase)
        least = f"at least; not modelled: {', '.join(missing)}" if missing else ""
        _show_phase(phase, size, "  ".join(filter(None, (mark, meaning, least))))
    if rank.smallest_reserved_bytes >= rank.peak_reserved_bytes:
        _show_phase("reserved", rank.peak_reserved_bytes, "")
    else:
        _show_phase("reserved", rank.peak_reserved_bytes, "on a card with memory enough, where caches stay")
        meaning = "reserved on the smallest card that runs it: the allocator gives caches back"
        _show_phase("smallest", rank.smallest_reserved_bytes, meaning)
    if rank.fragmented_bytes:  # of the smallest
        _show_phase("fragmented", rank.fragmented_bytes, "of that, reserved and not allocated at the peak")
    if rank.host_bytes:
        loaded = "; loaded weights are pages of their file, taken back when memory is short"
        _show_phase(
            "host", rank.host_bytes, f"tensors in host memory{loaded if _LOADED in done.stubbed else ''}"
        )
    if rank.managed_bytes:
        _show_phase("managed", rank.managed_bytes, MANAGED)
    if rank.written_bytes:
        _show_phase("written", rank.written_bytes, "tensors on disk")
    if rank.at_peak:
        write("\n  live at the peak")
    for row in rank.at_peak[:_MOST_ROWS]:
        _show_held(row)


def _show_phase(name: str, size: int, meaning: str) -> None:
    start = f"  {name:<10} {format_gib(size):>12}"
    write("\n".join(wrapped(meaning, start + "  ", " " * (len(start) + 4))).rstrip())


def _show_held(row: HeldAtPeak) -> None:
    """In a row; where that is wider than the terminal, module and location stand below."""
    limit, start = terminal_width(), f"  {format_gib(row.bytes):>12}  "
    line = f"{start}{row.what:<24} {row.module:<36} {row.location}".rstrip()
    if limit is None or len(line) <= limit:
        write(line)
        return
    below = " " * 6
    write(start + row.what)
    for text in filter(None, (row.module, row.location)):
        write("\n".join(wrapped(text, below, below)))


def _show_step(step: StepTime) -> None:
    """The step's time, its range, and where it goes."""
    low, high = format_seconds(step.low), format_seconds(step.high)
    spread = f", {low} to {high} on other hosts" if low != high else ""
    write()
    _echo(f"a step takes {format_seconds(step.seconds)}{spread}, paced by the {_PACED[step.paced_by]}")
    _echo(step.note)
    if step.together:
        rank = min(step.together, key=lambda one: one.waiting_seconds).rank
        _echo(f"{waiting(step)}; rank {rank}, which waits least:")
    for name, seconds in step.parts.items():
        write("\n".join(wrapped(name, f"  {format_seconds(seconds):>12}  ", " " * 18)))


def _show_guesses(guesses: tuple[GuessedValue, ...]) -> None:
    if not guesses:
        return
    sizes = sum(1 for guess in guesses if guess.decides_sizes)
    count = counted(len(guesses), "guess", "guesses")
    write(f"\n  {count}, of which {sizes or 'none'} decide{'' if sizes > 1 else 's'} sizes")
    for guess in guesses[:_MOST_GUESSES]:
        _echo(f"{guess.location}: {guess.what}: {guess.value} ({times(guess.times)})")


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
    from zerokit.rehearsal.html import RehearsalPage, write_html

    words = click.get_current_context().meta[WORDS]
    page = RehearsalPage(
        script=script, command=Secrets(os.environ, words).argv(words), plan=plan, program=program(),
        written_at=time.time(),
    )  # fmt: skip
    write_html(path, done, page)
