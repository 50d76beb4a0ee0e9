"""A rank that works on what other ranks send it is rehearsed after them.

A later stage of a pipeline receives shapes and values from the stage before. Which ranks are needed the
rehearsed process says itself, as soon as it knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zerokit.rehearsal.conduct import Exchange, NeedsRanks, RehearsalRequest, rehearse_one
from zerokit.rehearsal.result import Rehearsal, Stop
from zerokit.temporary import temporary_folder
from zerokit.units import format_gib

Progress = Callable[[str], None]


def rehearse(request: RehearsalRequest, progress: Progress | None = None) -> Rehearsal:
    """Run the script on the fake GPU as one rank, after those that it receives from.

    Args:
        progress: called with a line after each optimizer step.

    Raises:
        InputError: no such script, plan, GPU or launcher.
    """
    with temporary_folder("messages") as folder:
        return with_missing(Senders(folder.resolve(), progress).rehearse(request))


class Senders:
    """The ranks of one run that were rehearsed so far, and what they sent.

    Attributes:
        rehearsed: by rank.
    """

    def __init__(self, folder: Path, progress: Progress | None = None) -> None:
        self._folder = folder
        self._progress = progress or (lambda line: None)
        self._waiting: list[int] = []
        self.rehearsed: dict[int, Rehearsal] = {}

    def rehearse(self, request: RehearsalRequest) -> Rehearsal:
        """One rank, after those that it needs.

        Raises:
            InputError: as :func:`rehearse`.
        """
        deadline = time.monotonic() + request.limit_seconds if request.limit_seconds is not None else None
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
            done = rehearse_one(in_time, self._progress, exchange)
            if not isinstance(done, NeedsRanks):
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
                    return _not_without(sender, done, request.rank, rank)
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


def _left(deadline: float | None) -> float | None:
    return max(0.0, deadline - time.monotonic()) if deadline is not None else None


def _not_without(sender: Rehearsal, needs: NeedsRanks, rank: int, stopped_rank: int) -> Rehearsal:
    """The answer for a rank whose sender could not be rehearsed to its end."""
    stop = sender.stopped or Stop(location="", operator="", reason="it did not end")
    reason = f"rank {rank} works on what rank {stopped_rank} sends, which stopped: {stop.reason}"
    so_far = needs.so_far
    return replace(
        so_far, stopped=replace(stop, reason=reason), warnings=(*so_far.warnings, *sender.warnings)
    )


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
    guesses = {(guess.location, guess.what): guess for guess in done.guesses}
    for sender in senders:
        warnings += [warning for warning in sender.warnings if warning not in warnings]
        for guess in sender.guesses:
            guesses.setdefault((guess.location, guess.what), guess)
    return replace(
        done,
        guesses=tuple(guesses.values()),
        notes=tuple(notes),
        warnings=tuple(warnings),
        seconds=done.seconds + sum(sender.seconds for sender in senders),
        cpu_seconds=done.cpu_seconds + sum(sender.cpu_seconds for sender in senders),
    )
