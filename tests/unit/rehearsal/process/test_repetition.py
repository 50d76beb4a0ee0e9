"""Courses of a few layers repeated to all: against a program that is run with all of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.rehearsal.process.repetition import (
    BORN,
    DIED,
    EMPTIED,
    ISSUED,
    NOBODY,
    Course,
    Repetition,
    Unproved,
)


class Recording:
    """What a program asks for, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, Any, Any, int]] = []  # kind, subject, what, size, value
        self._births: list[tuple[Any, int]] = []

    def born(self, name: str, size: int) -> int:
        number = len(self._births)
        self._births.append((name, size))
        self.events.append((BORN, number, name, size, size))
        return number

    def died(self, number: int) -> None:
        name, size = self._births[number]
        self.events.append((DIED, number, ("end of", name), size, 0))

    def issued(self, name: str, work: int) -> None:
        self.events.append((ISSUED, len(self.events), ("issued", name), work, work))

    def emptied(self) -> None:
        self.events.append((EMPTIED, 0, "emptied", None, 0))

    def course(self) -> Course:
        kinds, subjects, whats, sizes, values = zip(*self.events, strict=True)
        return Course(
            kinds=np.asarray(kinds),
            exact=np.asarray([hash((what, size)) for what, size in zip(whats, sizes, strict=True)]),
            alike=np.asarray([hash(what) for what in whats]),
            subjects=np.asarray(subjects),
            values=np.asarray(values, float)[:, None],
            totals=np.zeros(1, np.int64),
        )


Program = Callable[[Recording, int], None]


def recorded(program: Program, layers: int) -> Recording:
    recording = Recording()
    program(recording, layers)
    return recording


def extended(program: Program, layers: int, fewer: int = 3, more: int = 5) -> Iterator[tuple[Any, ...]]:
    """What the two smaller ones say of all layers: kind, what and size, which block ends."""
    one, other = (recorded(program, count) for count in (fewer, more))
    found = Repetition(one.course(), other.course(), more - fewer).course(layers - more)
    for event, ended, grown in found:
        kind, _, what, size, _ = other.events[event]
        yield (
            kind,
            what,
            size if grown is None or kind == DIED else round(grown[0]),
            ended if kind == DIED else NOBODY,
        )


def truth(program: Program, layers: int) -> Iterator[tuple[Any, ...]]:
    for kind, subject, what, size, _ in recorded(program, layers).events:
        yield kind, what, size, subject if kind == DIED else NOBODY


def without_sizes_of_ends(events: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(kind, what, None if kind == DIED else size, ended) for kind, what, size, ended in events]


def training(recording: Recording, layers: int) -> None:
    """Weights, then steps with activations that backward frees in reverse, gradients that the optimizer frees
    in order, states of a first step, a list of norms, and a cache that is emptied."""
    weights = [[recording.born("q", 100), recording.born("k", 40)] for _ in range(layers)]
    head = recording.born("head", 700)
    states: list[int] = []
    for step in range(3):
        kept = []
        below = recording.born("embedded", 60)
        for _ in range(layers):
            inner = recording.born("inner", 30)
            above = recording.born("output", 60)
            recording.issued("product", 5)
            recording.died(inner)
            kept.append((below, recording.born("mask", 7)))
            below = above
        logits = recording.born("logits", 500)
        recording.died(below)
        flows = recording.born("gradient of logits", 500)
        recording.died(logits)
        gradients = []
        for activation, mask in reversed(kept):
            gradients.append(recording.born("gradient of q", 100))
            further = recording.born("flow", 60)
            recording.died(flows)
            recording.died(mask)
            recording.died(activation)
            gradients.append(recording.born("gradient of k", 40))
            flows = further
        recording.died(flows)
        norms = recording.born("norms", 4 * len(gradients))
        recording.issued("norm", 8 * len(gradients))
        recording.died(norms)
        if not step:
            states = [recording.born("state", size) for _ in weights for size in (100, 40)]
        recording.issued("step", sum(140 for _ in weights))
        for gradient in gradients:
            recording.died(gradient)
        recording.emptied()
    for state in states:
        recording.died(state)
    recording.died(head)


@pytest.mark.parametrize("layers", [6, 7, 12, 40])
def test_a_training_of_all_layers_follows_from_three_and_five(layers: int) -> None:
    assert without_sizes_of_ends(extended(training, layers)) == without_sizes_of_ends(truth(training, layers))


def programs(seed: int) -> Program:
    """A program of random blocks in each layer, forward and back, with what is kept and freed at random."""

    def program(recording: Recording, layers: int) -> None:
        rng = random.Random(seed)
        forward = [(f"f{number}", rng.randrange(1, 9), rng.random()) for number in range(rng.randrange(1, 6))]
        backward = [
            (f"b{number}", rng.randrange(1, 9), rng.random()) for number in range(rng.randrange(1, 6))
        ]
        in_reverse, carried = rng.random() < 0.7, rng.random() < 0.5
        extra = rng.randrange(3)
        for _ in range(rng.randrange(1, 4)):
            kept: list[list[int]] = []
            last = recording.born("carried", 50) if carried else None
            for _ in range(layers):
                mine = []
                for name, size, lot in forward:
                    block = recording.born(name, size)
                    if lot < 0.3:
                        recording.died(block)
                    else:
                        mine.append(block)
                if last is not None:
                    now = recording.born("carried", 50)
                    recording.died(last)
                    last = now
                kept.append(mine)
            middle = [recording.born(f"middle{number}", 300 + number) for number in range(extra)]
            grown = recording.born("list", 8 * layers)
            ends = []
            for mine in reversed(kept) if in_reverse else kept:
                for name, size, lot in backward:
                    block = recording.born(name, size)
                    recording.issued(name, size)
                    if lot < 0.5:
                        recording.died(block)
                    else:
                        ends.append(block)
                for block in mine:
                    recording.died(block)
            for block in (*middle, grown, *ends, *([last] if last is not None else [])):
                recording.died(block)

    return program


@given(st.integers(0, 10**6), st.integers(6, 20))
def test_random_programs_are_extended_or_refused(seed: int, layers: int) -> None:
    program = programs(seed)
    try:
        found = without_sizes_of_ends(extended(program, layers))
    except Unproved:
        return
    assert found == without_sizes_of_ends(truth(program, layers))


def test_most_random_programs_are_extended() -> None:
    done = 0
    for seed in range(40):
        with contextlib.suppress(Unproved):
            done += bool(list(extended(programs(seed), 12)))
    assert done >= 36


def of_buckets(recording: Recording, layers: int) -> None:
    """Gradients gather until three layers' are there."""
    waiting: list[int] = []
    for _ in range(layers):
        waiting.append(recording.born("gradient", 10))
        if len(waiting) == 3:
            recording.issued("reduce", 30)
            for block in waiting:
                recording.died(block)
            waiting = []


def of_unlike_layers(recording: Recording, layers: int) -> None:
    for layer in range(layers):
        recording.died(recording.born("wide" if layer % 2 else "narrow", 30 if layer % 2 else 10))


def of_squares(recording: Recording, layers: int) -> None:
    blocks = [recording.born("all before", 10) for layer in range(layers) for _ in range(layer)]
    for block in blocks:
        recording.died(block)


@pytest.mark.parametrize("program", [of_buckets, of_squares])
def test_what_layers_do_together_is_refused(program: Program) -> None:
    with pytest.raises(Unproved):
        list(extended(program, 12))


def test_layers_that_take_turns_are_refused_or_right() -> None:
    with pytest.raises(Unproved):
        list(extended(of_unlike_layers, 12, 3, 4))
