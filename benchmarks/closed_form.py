"""What the closed form says fits, against traces: ``python -m benchmarks.closed_form [NAME…] [--trace]``.

For every model of the catalogue × method × card × 1 and 8 GPUs, the plans that the closed form alone would
give, traced: with the catalogue's traces (four minutes), or with ``--trace`` with new ones where it has none
(torch), the smallest models first, for ``--seconds``. One line for each plan that says "Fits" where the trace
does not fit, or whose trace is beyond its margin; the counts; and for each half of the families what of their
activations the margin must be, so that each half judges a margin that was sized on the other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from zerokit.catalog import models, profiles
from zerokit.domain.job import METHODS
from zerokit.domain.strategy import Candidate
from zerokit.errors import ZerokitError
from zerokit.memory.closed_form import REST_WITHIN
from zerokit.memory.components import Component
from zerokit.memory.estimate import covers, estimate_traced
from zerokit.planner.memory_source import Model, Source
from zerokit.planner.request import resolve
from zerokit.search.explain import headroom_bytes, is_sure
from zerokit.search.plan import make_space
from zerokit.search.search import search
from zerokit.units import GIB
from zerokit.values import replace

CARDS = ("rtx-4090", "a100-80gb", "h200")
GPUS = (1, 8)
CROSSED = ("bart", "switch", "t5", "whisper")
"""Families whose decoder reads an encoder, with a margin of their own."""


class Answer(NamedTuple):
    """A plan in closed form, and the least memory of its trace on such a card. Bytes."""

    words: str
    family: str
    candidate: Candidate
    is_sure: bool
    fits_traced: bool
    traced_bytes: int

    @property
    def needed_share(self) -> float:
        """Of the activations, how much more the margin must hold beside its share of the rest."""
        parts = self.candidate.memory.worst.components
        activations = parts.get(Component.ACTIVATIONS, 0)
        rest = REST_WITHIN * (sum(parts.values()) - activations)
        return (self.traced_bytes - self.candidate.memory.min_vram_bytes - rest) / max(1, activations)

    @property
    def beyond_bytes(self) -> int:
        """By how much the trace is above what the closed form says at most."""
        memory = self.candidate.memory
        return self.traced_bytes - memory.min_vram_bytes - memory.unsure_bytes


def answers(
    name: str, methods: tuple[str, ...] = METHODS, cards: tuple[str, ...] = CARDS, *, trace: bool = False
) -> Iterator[Answer]:
    """The plans of one model that a trace can be set against: three for each method, card and number of
    GPUs."""
    for method, card, gpus in ((m, c, g) for m in methods for c in cards for g in GPUS):
        options = {"model": name, "method": method, "gpu": card, "gpus": gpus}
        try:
            request = resolve(options, single=True).request
        except ZerokitError:  # adapters on a model without a language model's head
            continue
        assert isinstance(request.memory, Model)
        known = request.memory.source
        alone = Model(source=Source(shape=known.shape, name=name, head=known.head))
        closed = replace(request, memory=alone)
        space, _ = make_space(closed)
        for candidate in search(space, top=3).ranked:
            profile = known.profile
            if trace:
                profile = known.covering(space.job, candidate.strategy)
            if profile is None or not covers(profile, space.job, candidate.strategy):
                continue
            traced = estimate_traced(profile, space.job, candidate.strategy, request.cluster)
            yield Answer(
                words=f"{name} {method} {gpus} x {card}",
                family=known.shape.family,
                candidate=candidate,
                is_sure=is_sure(candidate.memory, request.cluster.gpu),
                fits_traced=headroom_bytes(traced, request.cluster.gpu) >= 0,
                traced_bytes=traced.min_vram_bytes,
            )


def main(arguments: list[str]) -> int:
    """Print what is wrong, and the counts; 1 where a plan says that it fits and its trace does not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.closed_form", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="of the catalogue; all unless given")
    parser.add_argument("--trace", action="store_true", help="trace what the catalogue has no trace of")
    parser.add_argument("--seconds", type=float, default=1200.0, help="of tracing (default: 1200)")
    options = parser.parse_args(arguments)
    counts, needed = Counter[str](), dict[str, tuple[float, str]]()
    names = options.names or (models.names() if options.trace else profiles.names())
    if options.trace:
        names = sorted(names, key=lambda name: models.load(name).parameters)
    until = time.monotonic() + options.seconds
    for name in names:
        if not models.load(name).has_closed_form:
            continue
        if options.trace and time.monotonic() > until:
            counts["models left out for time"] += 1
            continue
        for answer in answers(name, trace=options.trace):
            if answer.family not in CROSSED:
                need = (answer.needed_share, answer.words)
                needed[answer.family] = max(needed.get(answer.family, need), need)
            said = "fits" if answer.is_sure else "may fit"
            counts[f"{said}, traced {'fits' if answer.fits_traced else 'does not'}"] += 1
            counts["beyond the margin"] += answer.beyond_bytes > 0
            if answer.beyond_bytes > 0 or (answer.is_sure and not answer.fits_traced):
                memory = answer.candidate.memory
                print(
                    f"{answer.words}: {said}, {memory.min_vram_bytes / GIB:.1f} + "
                    f"{memory.unsure_bytes / GIB:.1f}, traced {answer.traced_bytes / GIB:.1f} GiB",
                    flush=True,
                )
    for words, count in sorted(counts.items()):
        print(f"{count:6,}  {words}")
    for at in range(min(2, len(needed))):
        half = sorted(needed)[at::2]
        share, words = max(needed[family] for family in half)
        print(f"{share:6.1%}  of activations needed ({words}) in {', '.join(half)}")
    return int(counts["fits, traced does not"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
