"""Best-first search over the declared space of strategies.

Every legal combination is enumerated. Each family (degrees, placement, checkpointing,
micro-batch) enters a queue under the time of its fastest knobs, which no other knobs beat; memory
is asked only of what comes to the front. What fits, but so narrowly that the allocator's retries cost
time (``zerokit.timing.step_time``), enters again under its time with them. So the first that
comes to the front settled is the fastest that fits, without the memory of the slower ones being
computed: exhaustive, and quick.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Candidate, MemoryEstimate, Strategy
from zerokit.errors import MemoryUnknown
from zerokit.memory.card import EXPANDABLE_BYTES
from zerokit.search.engine import Placement, Sizes
from zerokit.search.engines import build_strategy, engine_of
from zerokit.search.space import Layout, Space, batches, checkpointings, layout_violation, layouts
from zerokit.timing.step_time import most_spare_bytes, spare_bytes
from zerokit.values import frozen_dataclass


def too_large_with_any(memory: MemoryEstimate, strategy: Strategy, space: Space) -> bool:
    """Whether a strategy lacks more than another order of work can save."""
    most_saved = engine_of(space).most_saved_bytes(strategy.settings, space.timing.trainable)
    return memory.min_vram_bytes - most_saved > space.cluster.planned_bytes


@frozen_dataclass
class KnobFamily:
    """A strategy but for its knobs.

    Attributes:
        variants: its settings, the fastest first.
        fastest: the settings of which one is the fastest.
        frugal: the settings of which one requires the least memory, the likeliest last.
    """

    layout: Layout
    placement: Placement
    checkpointing: str
    micro_batch: int
    accumulation: int
    variants: tuple[Sizes, ...]
    fastest: tuple[Sizes, ...]
    frugal: tuple[Sizes, ...]

    @property
    def relatives(self) -> tuple[object, ...]:
        """What it shares with the families of other micro-batches: with as much accumulation (three are as
        many), a larger one requires more."""
        return self.layout, self.placement, self.checkpointing, min(3, self.accumulation)


@dataclass(slots=True, eq=False)
class Misfits:
    """Which settings of which families do not fit, as far as memory was asked."""

    # relatives and knobs -> (smallest micro-batch that does not fit, why)
    too_large: dict[tuple[object, ...], tuple[int, str]] = field(default_factory=dict)
    asked: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, family: KnobFamily, *settings: Sizes, reason: str) -> None:
        """These settings do not fit, nor with a larger micro-batch."""
        for chosen in settings:
            self.too_large[(family.relatives, chosen)] = (family.micro_batch, reason)

    def known(self, family: KnobFamily, chosen: Sizes) -> str | None:
        """Why these settings do not fit, as they or a smaller micro-batch told; ``None``: none did."""
        limit = self.too_large.get((family.relatives, chosen))
        return limit[1] if limit is not None and family.micro_batch >= limit[0] else None

    def of(self, family: KnobFamily, chosen: Sizes) -> str | None:
        """Why these settings do not fit: they themselves, or all frugal ones; ``None``: that is not known."""
        reasons = [self.known(family, frugal) for frugal in family.frugal]
        return self.known(family, chosen) or (reasons[-1] if all(reasons) else None)

    def to_ask(self, family: KnobFamily, chosen: Sizes) -> bool:
        """Whether these settings were neither asked nor are known not to fit; notes them as asked."""
        key = (family.relatives, chosen, family.micro_batch)
        if key in self.asked or self.known(family, chosen):
            return False
        self.asked.add(key)
        return True


BATCH_REASON = "global batch not divisible"
_TOO_LARGE = "GPU memory"
HOST_REASON = "host memory"
STATES_REASON = "GPU memory: model states alone"
_UNKNOWN = "memory not known"
_SLOWER = "slower than the plans shown"
_SAME_FAMILY = "other settings of the plans shown"


@frozen_dataclass
class SearchResult:
    """Result of a search.

    Attributes:
        ranked: the fastest that fit, best first, at most one of each family.
        nearest: of what did not fit, the one that lacks least memory; ``None`` when something fits
            or nothing was legal.
        unknown: the fastest strategy of those left out because nobody knows what they require, and why;
            ``None``: there is none among those that were asked.
        least_states_bytes: at least what the model states alone require of a GPU, of the strategies that were
            ruled out by it; ``None``: none was.
        rejected: reason -> how many candidates; what is slower than the ranked was not asked whether it fits.
    """

    ranked: tuple[Candidate, ...]
    nearest: Candidate | None
    unknown: tuple[Strategy, MemoryUnknown] | None
    least_states_bytes: int | None
    rejected: Mapping[str, int]
    candidates: int
    seconds: float


@frozen_dataclass
class _Variant:
    """One knob setting of a family. ``seconds``: without the allocator's retries."""

    seconds: float
    knobs: Sizes


def search(
    space: Space,
    top: int = 5,
    limit_seconds: float = math.inf,
    excluded: frozenset[Layout] = frozenset(),
    wants_nearest: bool = False,
) -> SearchResult:
    """The ``top`` fastest strategies that fit, of those that step within ``limit_seconds``.

    ``excluded``: layouts that an earlier search went through, and that are left out of this one.
    ``wants_nearest``: where nothing fits, say what lacks least, which costs memory estimates.
    """
    return Search(space, top, limit_seconds, excluded, wants_nearest).run()


def fits(memory: MemoryEstimate, cluster: Cluster) -> str | None:
    """Why the estimate does not fit the cluster; ``None`` when it does."""
    if memory.min_vram_bytes > cluster.planned_bytes:
        return _TOO_LARGE
    limit = cluster.host_limit_bytes
    if limit is not None and memory.host_bytes_per_node > limit:
        return HOST_REASON
    return None


@dataclass(slots=True, eq=False)
class Search:
    """One search and what it has learnt so far: :func:`search` makes it and runs it."""

    space: Space
    top: int
    limit_seconds: float = math.inf
    excluded: frozenset[Layout] = frozenset()
    wants_nearest: bool = False
    rejected: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    misfits: Misfits = field(default_factory=Misfits)
    nearest: tuple[float, Strategy, MemoryEstimate] | None = None
    hopeless: tuple[float, Strategy] | None = None
    unknown: tuple[Strategy, MemoryUnknown] | None = None
    least_states_bytes: int | None = None
    # (lack at least, order in which they were found, strategy) of those that lack host memory
    short_of_host: list[tuple[float, int, Strategy]] = field(default_factory=list)
    # family -> seconds that the allocator's retries take whatever the knobs; those that know it exactly
    floors: dict[int, float] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)

    def run(self) -> SearchResult:
        """Search."""
        started = time.perf_counter()
        ticket = itertools.count()
        queue: list[tuple[float, int, int, KnobFamily, _Variant | Candidate | None]] = []
        for order, family in enumerate(self.families()):
            seconds = min(self._seconds(family, chosen) for chosen in family.fastest)
            if seconds > self.limit_seconds:
                self.rejected[_SLOWER] += len(family.variants)
                continue
            heapq.heappush(queue, (seconds, order, next(ticket), family, None))
        ranked: list[Candidate] = []
        reported: set[int] = set()
        while queue and len(ranked) < self.top:
            now, order, _, family, chosen = heapq.heappop(queue)
            if order in reported:
                self.rejected[_SAME_FAMILY] += 1
            elif isinstance(chosen, Candidate):
                ranked.append(chosen)
                reported.add(order)
            else:
                entries = (
                    self._expand(order, family) if chosen is None else self._ask(order, family, chosen, now)
                )
                for seconds, entry in entries:
                    if seconds > self.limit_seconds:
                        self.rejected[_SLOWER] += 1
                    else:
                        heapq.heappush(queue, (seconds, order, next(ticket), family, entry))
        for _, order, _, family, chosen in queue:
            reason = _SAME_FAMILY if order in reported else _SLOWER
            self.rejected[reason] += 1 if chosen else len(family.variants)
        return SearchResult(
            ranked=tuple(ranked),
            nearest=self._nearest() if self.wants_nearest and not ranked else None,
            unknown=self.unknown,
            least_states_bytes=self.least_states_bytes,
            rejected=dict(self.rejected.most_common()),
            candidates=self.candidates,
            seconds=time.perf_counter() - started,
        )

    # ---------------------------------------------------------------- enumeration

    def families(self) -> Iterator[KnobFamily]:
        """Those that are legal; counts the others with why they are not."""
        space, engine = self.space, engine_of(self.space)
        spots = engine.placements(space.pins, space)
        modes = checkpointings(space)
        for layout in layouts(space.cluster, space.pins):
            if layout in self.excluded:
                continue
            pairs = list(batches(space, layout))
            size = (
                sum(len(engine.variants(space, layout, spot)) for spot in spots)
                * len(modes)
                * max(1, len(pairs))
            )
            self.candidates += size
            refused = layout_violation(layout, space)
            if refused is not None or not pairs:
                self.rejected[refused.reason if refused else BATCH_REASON] += size
                continue
            for placement in spots:
                variants = engine.variants(space, layout, placement)
                count = len(variants) * len(modes) * len(pairs)
                strategy = build_strategy(space, layout, placement, "none", *pairs[0], variants[0])
                reason = engine.illegal(space, strategy) or self._states_too_large(layout, placement)
                if reason:
                    self.rejected[reason] += count
                    continue
                for mode in modes:
                    for micro, steps in pairs:
                        yield KnobFamily(
                            layout=layout, placement=placement, checkpointing=mode,
                            micro_batch=micro, accumulation=steps, variants=variants,
                            fastest=engine.fastest(variants),
                            frugal=engine.frugal(space, layout, placement, (micro, steps), variants),
                        )  # fmt: skip

    def _states_too_large(self, layout: Layout, placement: Placement) -> str | None:
        """Model states that no micro-batch or knob can make smaller: a bound from below."""
        space = self.space
        if space.job.inference or space.job.method != "full":
            return None
        size = engine_of(space).least_state_bytes(space, layout, placement)
        if size <= space.cluster.planned_bytes:
            return None
        self.least_states_bytes = min(int(size), self.least_states_bytes or int(size))
        return STATES_REASON

    # ---------------------------------------------------------------- time and memory

    def _strategy(self, family: KnobFamily, chosen: Sizes) -> Strategy:
        return build_strategy(
            self.space, family.layout, family.placement, family.checkpointing, family.micro_batch,
            family.accumulation, chosen,
        )  # fmt: skip

    def _seconds(self, family: KnobFamily, chosen: Sizes) -> float:
        return self.space.timing.estimate(self._strategy(family, chosen)).step_seconds

    def _expand(self, order: int, family: KnobFamily) -> Iterator[tuple[float, _Variant]]:
        """The family's knob settings with their times; none when a bound shows that no knob helps."""
        least = self._least_vram(family)
        if least > self.space.cluster.planned_bytes:
            self.rejected[_TOO_LARGE] += len(family.variants)
            return
        if least:
            strategy = self._strategy(family, family.variants[0])
            headroom = most_spare_bytes(least, strategy, self.space.job, self.space.cluster)
            self.floors[order] = self._frugal_retries(family, headroom)
        elif len(family.variants) > 1:
            # no bound (closed form): to ask takes less than to time every setting
            self._ask_frugal(family)
            reasons = [self.misfits.of(family, chosen) for chosen in family.variants]
            if all(reasons):
                self.rejected.update(filter(None, reasons))
                return
        floor = self.floors.get(order, 0.0)
        timed = [_Variant(seconds=self._seconds(family, chosen), knobs=chosen) for chosen in family.variants]
        timed.reverse()  # of equally fast settings the most frugal comes first
        for variant in sorted(timed, key=lambda one: float(f"{one.seconds:.9g}")):
            yield variant.seconds + floor, variant

    def _ask(
        self, order: int, family: KnobFamily, variant: _Variant, now: float
    ) -> Iterator[tuple[float, _Variant | Candidate]]:
        """The candidate under its time, if it fits; or the setting again, under a later time than ``now``
        that is known meanwhile: it retries as long as the family's most frugal setting, or longer."""
        bound = variant.seconds + self.floors.get(order, 0.0)
        if bound > now:
            yield bound, variant
            return
        candidate = self._try(family, variant.knobs)
        if candidate is None:
            return
        yield candidate.time.step_seconds, candidate
        if candidate.time.step_seconds > bound and order not in self.settled and len(family.variants) > 1:
            self.settled.add(order)
            headroom = max(
                spare_bytes(self._memory(one), one, self.space.job, self.space.cluster)
                for one in (self._strategy(family, frugal) for frugal in family.frugal)
            )
            self.floors[order] = max(self.floors.get(order, 0.0), self._frugal_retries(family, headroom))

    def _least_vram(self, family: KnobFamily) -> int:
        """The bound from below, 0 where there is none; notes the family that lacks least."""
        space = self.space
        least, strategy = math.inf, self._strategy(family, family.variants[-1])
        for frugal in reversed(family.frugal):
            one = self._strategy(family, frugal)
            bytes_at_least = space.memory.least_vram_bytes(space.job, one, space.cluster)
            if bytes_at_least < least:
                least, strategy = bytes_at_least, one
        lack = least / space.cluster.planned_bytes
        if lack > 1 and (self.hopeless is None or lack < self.hopeless[0]):
            self.hopeless = (lack, strategy)
        return int(least)

    def _frugal_retries(self, family: KnobFamily, headroom: int) -> float:
        strategy = self._strategy(family, family.variants[-1])
        return self.space.timing.retry_seconds(strategy, max(headroom, EXPANDABLE_BYTES))

    def _try(self, family: KnobFamily, chosen: Sizes) -> Candidate | None:
        """The candidate, if it fits. After a first failure the most frugal knobs are asked, once."""
        known = self.misfits.of(family, chosen)
        if known is not None:
            self.rejected[known] += 1
            return None
        strategy = self._strategy(family, chosen)
        reason, memory = self._misfit(strategy)
        if reason is None:
            assert memory is not None
            timing = self.space.timing
            time = timing.with_retries(timing.estimate(strategy), strategy, memory)
            return Candidate(strategy=strategy, memory=memory, time=time)
        self.rejected[reason] += 1
        self.misfits.add(family, chosen, reason=reason)
        self._ask_frugal(family)
        return None

    def _ask_frugal(self, family: KnobFamily) -> None:
        """Ask the settings of which one requires the least, each once, until one fits."""
        for frugal in reversed(family.frugal):
            if not self.misfits.to_ask(family, frugal):
                continue
            strategy = self._strategy(family, frugal)
            reason, memory = self._misfit(strategy)
            if reason is None:
                break
            self.misfits.add(family, frugal, reason=reason)
            if memory and too_large_with_any(memory, strategy, self.space):
                self.misfits.add(family, *family.frugal, reason=reason)
                break

    def _misfit(self, strategy: Strategy) -> tuple[str | None, MemoryEstimate | None]:
        """Why the strategy does not fit, ``None`` when it does; and the estimate, if one was needed."""
        space, limit = self.space, self.space.cluster.host_limit_bytes
        required = None if limit is None else space.memory.host_bytes(space.job, strategy, space.cluster)
        if limit is not None and required is not None and required > limit:
            if self.wants_nearest:  # what it lacks at least
                vram = space.memory.least_vram_bytes(space.job, strategy, space.cluster)
                lack = max(1.0, vram / space.cluster.planned_bytes) + required / limit - 1
                heapq.heappush(self.short_of_host, (lack, len(self.short_of_host), strategy))
            return HOST_REASON, None
        try:
            memory = self._memory(strategy)
        except MemoryUnknown as error:
            self.unknown = self.unknown or (strategy, error)
            return _UNKNOWN, None
        return fits(memory, space.cluster), memory

    def _memory(self, strategy: Strategy) -> MemoryEstimate:
        space = self.space
        memory = space.memory(space.job, strategy, space.cluster)
        lack = max(1.0, memory.min_vram_bytes / space.cluster.planned_bytes)
        if limit := space.cluster.host_limit_bytes:
            lack += max(0.0, memory.host_bytes_per_node / limit - 1)
        if lack > 1 and (self.nearest is None or lack < self.nearest[0]):
            self.nearest = (lack, strategy, memory)
        return memory

    def _nearest(self) -> Candidate | None:
        """What lacks least, of all that were tried or ruled out."""
        if self.hopeless is not None and (self.nearest is None or self.hopeless[0] < self.nearest[0]):
            self._memory(self.hopeless[1])
        while self.short_of_host and (self.nearest is None or self.short_of_host[0][0] < self.nearest[0]):
            self._memory(heapq.heappop(self.short_of_host)[-1])
        if self.nearest is None:
            return None
        _, strategy, memory = self.nearest
        return Candidate(strategy=strategy, memory=memory, time=self.space.timing.estimate(strategy))
