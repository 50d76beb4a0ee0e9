"""Several ranks of one run, rehearsed one after another, as one answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from zerokit.errors import InputError
from zerokit.planner.few_layers import FURTHER
from zerokit.rehearsal import kept
from zerokit.rehearsal.by_replay import all_layers
from zerokit.rehearsal.conduct import Exchange, NeedsRanks, NeedsWhole, RehearsalRequest, rehearse_one
from zerokit.rehearsal.order import ENGINE
from zerokit.rehearsal.result import GuessedValue, Rehearsal, Stop
from zerokit.rehearsal.zygote import Zygote
from zerokit.units import format_gib

Progress = Callable[[str], None]


def rehearse(
    request: RehearsalRequest, progress: Progress | None = None, zygote: Zygote | None = None
) -> Rehearsal:
    """Run the script on the fake GPU as one rank, after those that it receives from. ``progress``: called
    with a line after each optimizer step. ``zygote``: of the script; None: one for this rehearsal. Raises
    InputError: no such script, plan, GPU or launcher."""
    if zygote is None:
        with Zygote(request.target) as zygote:
            return rehearse(request, progress, zygote)

    def anew(folder: Path) -> Rehearsal:
        until = _deadline(request)
        few = None if request.whole else _by_few_layers(request, folder, zygote, progress or _silent)
        in_time = replace(request, limit_seconds=_left(until))
        return with_missing(few or Senders(folder, zygote, progress).rehearse(in_time))

    return kept.answer(request, (request.rank,), progress, anew)


_NEAR, _NEAR_UNDER_ZERO_3 = 0.15, 0.05
"""Share of a card: what blocks lie apart follows from few layers within 1 % under ZeRO-3 (3.4 % with
accumulation, to which the first applies), within 10 % under ZeRO-1 with accumulation."""
FEW_LAYERS = 3, 5
"""Of a decoder, with which a script is rehearsed where these tell of all of them."""


def _by_few_layers(
    request: RehearsalRequest, folder: Path, zygote: Zygote, progress: Progress
) -> Rehearsal | None:
    """The answer by two rehearsals of a few layers, or where a model has no more than a few; None: they do
    not tell."""
    (folder / ENGINE).unlink(missing_ok=True)
    until = _deadline(request)

    def rehearsed(layers: int, exchange: Exchange) -> Rehearsal | str:
        in_time = replace(request, layers=layers, limit_seconds=_left(until))
        answer = rehearse_one(in_time, progress, exchange, zygote)
        if isinstance(answer, NeedsRanks):
            return "ranks wait for each other"
        return answer.why if isinstance(answer, NeedsWhole) else answer

    fewer, further = FEW_LAYERS
    done = first = rehearsed(fewer, Exchange(folder, fewer_layers=0))
    if isinstance(first, Rehearsal) and first.few_layers is not None:
        is_replayed = Exchange(folder).is_replayed
        if not is_replayed:
            done = rehearsed(further, Exchange(folder, fewer_layers=fewer))
        elif request.rank:
            done = "the replay is that of rank 0"
        else:
            done = rehearsed(fewer + FURTHER, Exchange(folder))
        if isinstance(done, Rehearsal) and done.few_layers is not None:
            done = all_layers(first, done, request.gpu, folder) if is_replayed else _joined(first, done)
    if isinstance(done, str):
        progress(f"all layers are rehearsed: {done}")
        return None
    if done.few_layers is None:
        return done
    engine = done.engine or {}
    is_regular = not done.fully_sharded and engine.get("zero_stage") == 3
    near = _NEAR_UNDER_ZERO_3 if is_regular and engine.get("gradient_accumulation") == 1 else _NEAR
    if done.vram_bytes and abs(done.vram_bytes - (done.min_vram_bytes or 0)) < near * done.vram_bytes:
        progress("all layers are rehearsed: these leave little of the card, or lack little")
        return None
    return done


def _joined(first: Rehearsal, done: Rehearsal) -> Rehearsal:
    """Two rehearsals of a few layers as one answer."""
    return replace(
        done,
        depth={**(done.few_layers or {}), "layers": list(FEW_LAYERS)},
        seconds=first.seconds + done.seconds,
        cpu_seconds=first.cpu_seconds + done.cpu_seconds,
    )


def _silent(line: str) -> None:
    """Say nothing."""


class Senders:
    """The ranks of one run that were rehearsed so far, and what they sent.

    A rank that works on what other ranks send it, as a later stage of a pipeline, is rehearsed after them.
    Which ranks are needed the rehearsed process says itself, as soon as it knows.
    """

    def __init__(self, folder: Path, zygote: Zygote, progress: Progress | None = None) -> None:
        self._folder = folder
        self._zygote = zygote
        self._progress = progress or _silent
        self._waiting: list[int] = []
        self.rehearsed: dict[int, Rehearsal] = {}

    def rehearse(self, request: RehearsalRequest) -> Rehearsal:
        """One rank, after those that it needs. Raises InputError: as :func:`rehearse`."""
        deadline = _deadline(request)
        self._waiting.append(request.rank)
        try:
            done = self._after_senders(request, deadline)
        finally:
            self._waiting.pop()
        self.rehearsed[request.rank] = done
        return done

    def _after_senders(self, request: RehearsalRequest, deadline: float | None) -> Rehearsal:
        senders: list[int] = []
        unknown: set[int] = set()
        while True:
            in_time = replace(request, limit_seconds=_left(deadline))
            exchange = Exchange(self._folder, tuple(sorted(unknown)))
            done = rehearse_one(in_time, self._progress, exchange, self._zygote)
            if isinstance(done, NeedsWhole):
                request = replace(request, layers=None)
                continue
            if isinstance(done, Rehearsal):
                return _with_notes(done, request.rank, [self.rehearsed[rank] for rank in senders], unknown)
            for rank in done.ranks:
                if rank in self._waiting:  # it waits for this one
                    unknown.add(rank)
                    continue
                self._progress(f"rank {rank} first: rank {request.rank} works on what it sends")
                output = output_of_rank(request.output, rank)
                sender = self.rehearse(
                    replace(request, rank=rank, output=output, operators=None, limit_seconds=_left(deadline))
                )
                if not sender.complete:
                    # the answer for a rank whose sender could not be rehearsed to its end
                    stop = sender.stopped or Stop(location="", operator="", reason="it did not end")
                    reason = (
                        f"rank {request.rank} works on what rank {rank} sends, which stopped: {stop.reason}"
                    )
                    so_far = done.so_far
                    return replace(
                        so_far,
                        stopped=replace(stop, reason=reason),
                        warnings=(*so_far.warnings, *sender.warnings),
                    )
                senders.append(rank)


def with_missing(done: Rehearsal) -> Rehearsal:
    """The answer with a warning where its step waits for nobody, though others send it messages."""
    if done.step is None or not done.step.missing:
        return done
    rank, missing = done.ranks[0].rank, ", ".join(f"rank {other}" for other in done.step.missing)
    warning = (
        f"the step's time is that of rank {rank} alone: it counts no waiting for {missing} "
        f"(`zerokit rehearse --ranks {rank},last` gives that of a whole pipeline)"
    )
    return replace(done, warnings=(*done.warnings, warning))


def output_of_rank(output: Path | None, rank: int) -> Path | None:
    """Another rank's output, beside the one that was asked for first."""
    return output.with_name(f"{output.stem}-rank-{rank}{output.suffix}") if output is not None else None


def _deadline(request: RehearsalRequest) -> float | None:
    """When a rehearsal is to be ended, by the clock that never goes back; None: never."""
    return time.monotonic() + request.limit_seconds if request.limit_seconds is not None else None


def _left(deadline: float | None) -> float | None:
    return max(0.0, deadline - time.monotonic()) if deadline is not None else None


def _with_notes(done: Rehearsal, rank: int, senders: list[Rehearsal], unknown: set[int]) -> Rehearsal:
    """The answer with what it rests on: what was guessed of its senders decides what it receives."""
    notes, warnings = list(done.notes), list(done.warnings)
    if senders:
        peaks = ", ".join(
            f"rank {r.rank} {format_gib(r.peak_allocated_bytes)}" for one in senders for r in one.ranks
        )
        notes.append(f"rank {rank} works on what others send, which were rehearsed first (peaks: {peaks})")
    if unknown:
        ranks = ", ".join(f"rank {other}" for other in sorted(unknown))
        warnings.append(
            f"rank {rank} waits for values of {ranks}, and the other way round: what it receives is guessed"
        )
    for sender in senders:
        warnings += [warning for warning in sender.warnings if warning not in warnings]
    return replace(
        done,
        guesses=_guesses(guess for one in (done, *senders) for guess in one.guesses),
        notes=tuple(notes),
        warnings=tuple(warnings),
        seconds=done.seconds + sum(sender.seconds for sender in senders),
        cpu_seconds=done.cpu_seconds + sum(sender.cpu_seconds for sender in senders),
    )


LAST = "last"
Item = TypeVar("Item")


def parse(text: str) -> tuple[int | str, ...]:
    """``0,7`` or ``0,last``. Raises InputError: not such a list."""
    ranks: list[int | str] = []
    for part in text.split(","):
        word = part.strip()
        if word != LAST and not word.isdecimal():
            raise InputError(f"⟨ranks⟩: {text!r} is not a list of ranks: write 0,7 or 0,{LAST}")
        ranks.append(word if word == LAST else int(word))
    return tuple(ranks)


def rehearse_ranks(
    request: RehearsalRequest, ranks: tuple[int | str, ...], progress: Progress | None = None
) -> Rehearsal:
    """Rehearse each rank in a process of its own, all from one that has the script's libraries.

    The step time is that of the first one, or of all that exchange messages, once these were rehearsed
    (replicas of a pipeline take the same time); phases, guesses and warnings are those of all; it fits where
    all do, and the smallest card is the one on which all of them run.

    Raises:
        InputError: as :func:`rehearse`; a rank that is not there.
    """

    def anew(folder: Path) -> Rehearsal:
        with Zygote(request.target) as zygote:
            senders = Senders(folder, zygote, progress)
            first, *rest = ranks
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

    return kept.answer(request, ranks, progress, anew)


def _of(
    request: RehearsalRequest, rank: int | str, gpus: int | None, progress: Progress | None, senders: Senders
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


def _guesses(guesses: Iterable[GuessedValue]) -> tuple[GuessedValue, ...]:
    """Once a place: ranks ask alike."""
    by_origin: dict[tuple[str, str], GuessedValue] = {}
    for guess in guesses:
        by_origin.setdefault((guess.location, guess.what), guess)
    return tuple(by_origin.values())
