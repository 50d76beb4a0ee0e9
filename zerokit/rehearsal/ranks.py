"""Several ranks of one run, rehearsed one after another, as one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from zerokit.errors import InputError
from zerokit.rehearsal.conduct import RehearsalRequest, rehearse
from zerokit.rehearsal.result import GuessedValue, Rehearsal

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

    The step time is that of the first one; phases, guesses and warnings are those of all; it fits where all
    do, and the smallest card is the one on which all of them run.

    Raises:
        InputError: as :func:`zerokit.rehearsal.conduct.rehearse`; a rank that is not there.
    """
    first, *others = ranks
    done = _of(request, first, None, progress)
    seen = {done.ranks[0].rank}
    for rank in others:
        # the number of ranks is known only now: the plan may have said it
        number = done.gpus - 1 if rank == LAST else rank
        if number in seen:
            continue
        seen.add(int(number))
        done = _both(done, _of(replace(request, step_time=False), number, done.gpus, progress))
    return done


def _of(
    request: RehearsalRequest,
    rank: int | str,
    gpus: int | None,
    progress: Callable[[str], None] | None,
) -> Rehearsal:
    if rank == LAST:
        count = gpus or request.gpus
        if count is None:
            raise InputError(f"⟨ranks⟩: {LAST} cannot come first without ⟨gpus⟩: begin with 0")
        rank = count - 1
    if progress is not None:
        progress(f"rank {rank}")
    output = request.output
    if output is not None and gpus is not None:  # each rank's own output beside the first one's
        output = output.with_name(f"{output.stem}-rank-{rank}{output.suffix}")
    return rehearse(replace(request, rank=int(rank), output=output), progress)


def _both(one: Rehearsal, other: Rehearsal) -> Rehearsal:
    fits = False if False in (one.fits, other.fits) else None if None in (one.fits, other.fits) else True
    return replace(
        one,
        complete=one.complete and other.complete,
        fits=fits,
        min_vram_bytes=max(
            (size for size in (one.min_vram_bytes, other.min_vram_bytes) if size), default=None
        ),
        steps=max(one.steps, other.steps),
        repeats=one.repeats and other.repeats,
        ranks=(*one.ranks, *other.ranks),
        guesses=_guesses((*one.guesses, *other.guesses)),
        stubbed=_once((*one.stubbed, *other.stubbed)),
        stopped=one.stopped or other.stopped,
        warnings=_once((*one.warnings, *other.warnings)),
        notes=_once((*one.notes, *other.notes)),
        sandboxed=one.sandboxed and other.sandboxed,
        seconds=one.seconds + other.seconds,
        cpu_seconds=one.cpu_seconds + other.cpu_seconds,
        changes=max((one, other), key=lambda each: max(r.peak_allocated_bytes for r in each.ranks)).changes,
    )


def _once(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(items))


def _guesses(guesses: tuple[GuessedValue, ...]) -> tuple[GuessedValue, ...]:
    """Once a place: ranks ask alike."""
    found: dict[tuple[str, str], GuessedValue] = {}
    for guess in guesses:
        found.setdefault((guess.location, guess.what), guess)
    return tuple(found.values())
