"""What is known of somebody's script: its rehearsals. A value, which the planner takes as an argument."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zerokit.domain.strategy import Strategy
from zerokit.units import counted
from zerokit.values import frozen_dataclass, replace


def by_option(words: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option with its values; what stands before the first is that of an empty name."""
    option: str = ""
    values: list[str] = []
    for word in itertools.chain(words, ["--"]):
        if not word.startswith("--"):
            values.append(word)
            continue
        if option or values:
            yield option, tuple(values)
        option, equals, value = word.partition("=")
        values = [value] if equals else []


@frozen_dataclass
class RehearsedStrategy:
    """One rehearsal of the script, with one strategy, as rank 0. Bytes, seconds.

    Attributes:
        phases: peak allocated by phase, as ``zerokit rehearse`` tells them.
        min_vram_bytes: the smallest card, as nvidia-smi counts its memory, on which this rank runs.
        components: what is live at the peak, by what it is; they sum to the peak.
        not_modelled: what is missing from these figures, which are then lower bounds.
        step_seconds: of an optimizer step with the strategy's own accumulation, on the host that is known,
            else on the reference host; None: not known.
        step_seconds_range: on the fastest and the slowest host measured.
        step_seconds_by_host_factor: on hosts of these factors (``zerokit.timing.host_speed``), rising; empty:
            not known.
        host_factor: of the host that the step is timed for, as measured on this machine; None: not known.
        untimed: why there is no step time; empty: there is one.
        warnings: what the rehearsal warned of.
        fed: what its training forwards were given, in words.
        layers: of the model, so many were rehearsed, of how many; None: all. The figures are the whole
            model's all the same.
    """

    strategy: Strategy
    phases: Mapping[str, int]
    min_vram_bytes: int
    components: Mapping[str, int]
    not_modelled: tuple[str, ...] = ()
    step_seconds: float | None = None
    step_seconds_range: tuple[float, float] | None = None
    step_seconds_by_host_factor: tuple[tuple[float, float], ...] = ()
    host_factor: float | None = None
    untimed: str = ""
    warnings: tuple[str, ...] = ()
    fed: str = ""
    layers: tuple[int, int] | None = None

    @property
    def peak_allocated_bytes(self) -> int:
        """The largest of all phases."""
        return max(self.phases.values())

    @property
    def depth(self) -> str:
        """With which part of its layers it was rehearsed, in words; empty: with all of them."""
        return "{} of {} layers".format(*self.layers) if self.layers is not None else ""


@frozen_dataclass
class ScriptProfile:
    """A script's rehearsals, in the order in which they were made.

    Attributes:
        name: of the script, for people.
        command: a digest of the script's name and arguments, by which a launch knows it again.
        sequences_per_row: that its model is fed of a row of the data, which batch sizes count; 2: of pairs
            (DPO).
        model: that it trains, for people.
        decided: the options of ``plan``, without dashes in front, whose value is the script's own.
        arguments: those that it was rehearsed with; secrets among them are masked.
        engines: of DeepSpeed that it makes. other_parameters: of models beside the one that trains.
    """

    name: str
    command: str
    rehearsed: tuple[RehearsedStrategy, ...] = ()
    sequences_per_row: int = 1
    model: str = ""
    decided: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    engines: int = 1
    other_parameters: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What the plan's choice keeps of it, for launches and for plans from ``plan.yaml``."""
        # by which a launch with other arguments knows the batch; without it a row is a sequence
        pairs = {"sequences_per_row": self.sequences_per_row} if self.sequences_per_row > 1 else {}
        script = {
            "name": self.name,
            "arguments": list(self.arguments),
            "model": self.model,
            "decided": list(self.decided),
            "engines": self.engines,
            "other_parameters": self.other_parameters,
        }
        return {**pairs, "script": script}

    def rows(self, count: int) -> str:
        """What a batch counts: ``8 sequences``, ``1 pair``."""
        noun = {1: "sequence", 2: "pair"}.get(self.sequences_per_row, "row")
        return counted(count, noun)

    def of(self, strategy: Strategy) -> RehearsedStrategy | None:
        """The rehearsal that holds for a strategy: accumulation beyond two micro-batches moves no memory."""
        memory_key = same_memory(strategy)
        return next(
            (rehearsed for rehearsed in self.rehearsed if same_memory(rehearsed.strategy) == memory_key), None
        )

    def untimed(self, strategy: Strategy) -> str:
        """Why the step time of a strategy rests on no rehearsal; empty: it does."""
        rehearsed = self.of(strategy)
        if rehearsed is None and any(not one.untimed for one in self.rehearsed):
            return ""  # by the factor of others
        return next((one.untimed for one in (rehearsed, *self.rehearsed) if one is not None), "")

    def with_rehearsed(self, rehearsed: RehearsedStrategy) -> ScriptProfile:
        """With one more, in the place of an earlier one of the same strategy."""
        others = (one for one in self.rehearsed if one.strategy != rehearsed.strategy)
        return replace(self, rehearsed=(*others, rehearsed))


def same_memory(strategy: Strategy) -> Strategy:
    """The strategy with at most two micro-batches a step: from the second on every one is alike."""
    accumulation = min(strategy.settings.gradient_accumulation, 2)
    return replace(strategy, settings=replace(strategy.settings, gradient_accumulation=accumulation))
