"""A rehearsal as tables on a terminal."""

from __future__ import annotations

import click

from zerokit.rehearsal.result import GuessedValue, Rehearsal
from zerokit.timing.recorded_step import StepTime
from zerokit.units import format_gib, format_seconds

_MOST_ROWS = 12
_MOST_GUESSES = 10
_MOST_CHANGES = 5
_PACED = {"host": "host", "gpu": "GPU", "links": "links", "cpu_adam": "host's optimizer"}


def show(done: Rehearsal) -> None:
    """Peaks, what is live at the largest, guesses, and the verdict."""
    for note in done.notes:
        click.echo(f"  {note}")
    versions = ", ".join(f"{name} {version}" for name, version in done.versions.items())
    click.echo(f"  versions: {versions}")
    for rank in done.ranks:
        click.echo(
            f"\nrank {rank.rank} of {done.gpus} on {done.gpu}, {done.steps} optimizer steps"
            f"{'' if done.repeats else ' (the peaks did not repeat yet)'}"
        )
        for phase, size in rank.phases.items():
            mark = "  ← peak" if phase == rank.peak_phase else ""
            missing = rank.lower_bounds.get(phase)
            least = f"  at least; not modelled: {', '.join(missing)}" if missing else ""
            click.echo(f"  {phase:<10} {format_gib(size):>12}{mark}{least}")
        click.echo(f"  {'reserved':<10} {format_gib(rank.peak_reserved_bytes):>12}")
        if rank.fragmented_bytes:
            click.echo(
                f"  {'fragmented':<10} {format_gib(rank.fragmented_bytes):>12}  reserved and not allocated, "
                "on the smallest card"
            )
        if rank.host_bytes:
            click.echo(f"  {'host':<10} {format_gib(rank.host_bytes):>12}  tensors in host memory")
        if rank.written_bytes:
            click.echo(f"  {'written':<10} {format_gib(rank.written_bytes):>12}  tensors on disk")
        if rank.at_peak:
            click.echo("\n  live at the peak")
            for row in rank.at_peak[:_MOST_ROWS]:
                click.echo(f"  {format_gib(row.bytes):>12}  {row.what:<24} {row.module:<36} {row.location}")
    if done.changes:
        click.echo("\n  what would lower the peak, by at most")
        for change in done.changes[:_MOST_CHANGES]:
            click.echo(f"  {format_gib(change.saves_bytes):>12}  {change.what}")
    if done.step is not None:
        _show_step(done.step)
    _show_guesses(done.guesses)
    for what in done.stubbed:
        click.echo(f"  stood in for: {what}")
    for warning in done.warnings:
        click.echo(f"  warning: {warning}")
    click.echo(_verdict(done))


def _show_step(step: StepTime) -> None:
    """The step's time, its range, and where it goes."""
    low, high = format_seconds(step.low), format_seconds(step.high)
    spread = f", {low} to {high} on other hosts" if step.high > step.low else ""
    click.echo(
        f"\n  a step takes {format_seconds(step.seconds)}{spread}, paced by the {_PACED[step.paced_by]}"
    )
    click.echo(f"  {step.note}")
    for name, seconds in step.parts.items():
        click.echo(f"  {format_seconds(seconds):>12}  {name}")


def _show_guesses(guesses: tuple[GuessedValue, ...]) -> None:
    if not guesses:
        return
    sizes = sum(1 for each in guesses if each.decides_sizes)
    click.echo(f"\n  {len(guesses)} guesses, {sizes} of them decide sizes")
    for each in guesses[:_MOST_GUESSES]:
        times = "once" if each.times == 1 else f"{each.times} times"
        click.echo(f"  {each.location}: {each.what}: {each.value} ({times})")


def _verdict(done: Rehearsal) -> str:
    if done.stopped is not None:
        where = f" at {done.stopped.location}" if done.stopped.location else ""
        operator = f" ({done.stopped.operator})" if done.stopped.operator else ""
        return f"\nincomplete: stopped{where}{operator}: {done.stopped.reason}"
    if done.min_vram_bytes is None:
        return "\nnothing was allocated on the GPU"
    required = format_gib(done.min_vram_bytes)
    if done.fits is None and done.lower_bound:
        return f"\nnot known whether it fits on {done.gpu}: at least {required} is required (see the phases)"
    if done.lower_bound:
        required = f"at least {required}"
    if done.fits is None:
        return f"\na GPU of {required} is required"
    return f"\n{'fits' if done.fits else 'does not fit'}: {required} required on {done.gpu}"
