"""Several ranks of one run, rehearsed one after another, as one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from zerokit.errors import InputError
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.result import GuessedValue, Rehearsal
from zerokit.rehearsal.senders import Senders, output_of_rank, with_missing
from zerokit.temporary import temporary_folder

LAST = "last"
Item = TypeVar("Item")


def parse(text: str) -> tuple[int | str, ...]:
    """``0,7`` or ``0,last``.

    Raises:
        InputError: not such a list.
    """
    ranks: list[int | str] = []
    for part in text.split(","):
        word = part.strip()
        if word != LAST and not word.isdecimal():
            raise InputError(f"⟨ranks⟩: {text!r} is not a list of ranks: write 0,7 or 0,{LAST}")
        ranks.append(word if word == LAST else int(word))
    return tuple(ranks)


def rehearse_ranks(
    request: RehearsalRequest, ranks: tuple[int | str, ...], progress: Callable[[str], None] | None = None
) -> Rehearsal:
    """Rehearse each rank in a process of its own.

    The step time is that of the first one, or of all that exchange messages, once these were rehearsed
    (replicas of a pipeline take the same time); phases, guesses and warnings are those of all; it fits where
    all do, and the smallest card is the one on which all of them run.

    Raises:
        InputError: as :func:`zerokit.rehearsal.senders.rehearse`; a rank that is not there.
    """
    first, *rest = ranks
    with temporary_folder("messages") as folder:
        senders = Senders(folder.resolve(), progress)
        done = _of(request, first, None, progress, senders)
        answered = {done.ranks[0].rank}
        for rank in rest:
            # the number of ranks is known only now: the plan may have said it
            number = int(done.gpus - 1 if rank == LAST else rank)
            if number in answered:
                continue
            answered.add(number)
            another = senders.rehearsed.get(number)
            if another is not None:  # another rank needed it, and counted its time
                another = replace(another, seconds=0.0, cpu_seconds=0.0)
            else:
                waits = done.step is not None and bool(done.step.missing)
                another = _of(replace(request, step_time=waits), number, done.gpus, progress, senders)
            done = _both(done, another)
    return with_missing(done)


def _of(
    request: RehearsalRequest,
    rank: int | str,
    gpus: int | None,
    progress: Callable[[str], None] | None,
    senders: Senders,
) -> Rehearsal:
    if rank == LAST:
        count = gpus or request.gpus
        if count is None:
            raise InputError(f"⟨ranks⟩: {LAST} cannot come first without ⟨gpus⟩: begin with 0")
        rank = count - 1
    if progress is not None:
        progress(f"rank {rank}")
    output = request.output if gpus is None else output_of_rank(request.output, int(rank))
    return senders.rehearse(replace(request, rank=int(rank), output=output))


def _both(first: Rehearsal, second: Rehearsal) -> Rehearsal:
    timed = second if second.step is not None and second.step.together else first
    fits = (
        False if False in (first.fits, second.fits) else None if None in (first.fits, second.fits) else True
    )
    return replace(
        first,
        complete=first.complete and second.complete,
        fits=fits,
        min_vram_bytes=max(
            (size for size in (first.min_vram_bytes, second.min_vram_bytes) if size), default=None
        ),
        steps=max(first.steps, second.steps),
        repeats=first.repeats and second.repeats,
        last_steps_differ_by=max(
            (share for done in (first, second) if (share := done.last_steps_differ_by) is not None),
            default=None,
        ),
        ranks=(*first.ranks, *second.ranks),
        bf16=first.bf16 or second.bf16,
        untrained=first.untrained or second.untrained,
        guesses=_guesses((*first.guesses, *second.guesses)),
        stubbed=_once((*first.stubbed, *second.stubbed)),
        stopped=first.stopped or second.stopped,
        warnings=_once((*first.warnings, *second.warnings)),
        notes=_once((*first.notes, *second.notes)),
        sandboxed=first.sandboxed and second.sandboxed,
        step_seconds=timed.step_seconds,
        step_seconds_range=timed.step_seconds_range,
        step=timed.step,
        seconds=first.seconds + second.seconds,
        cpu_seconds=first.cpu_seconds + second.cpu_seconds,
        changes=max(
            (first, second), key=lambda rehearsal: max(r.peak_allocated_bytes for r in rehearsal.ranks)
        ).changes,
    )


def _once(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(items))


def _guesses(guesses: tuple[GuessedValue, ...]) -> tuple[GuessedValue, ...]:
    """Once a place: ranks ask alike."""
    by_origin: dict[tuple[str, str], GuessedValue] = {}
    for guess in guesses:
        by_origin.setdefault((guess.location, guess.what), guess)
    return tuple(by_origin.values())
