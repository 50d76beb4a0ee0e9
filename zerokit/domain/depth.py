"""A model with fewer layers than it has: for what a rehearsal of a few layers says of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from zerokit.domain.activations import ActivationTrace, Run
from zerokit.domain.profile import ModelProfile, Parameter
from zerokit.values import replace

Value = TypeVar("Value")
_ADAPTED = "base_model.model."
"""What PEFT puts before the names of a model that it adapts."""


def at_depth(profile: ModelProfile, layers: int) -> ModelProfile | None:
    """The model with so many of its layers, and those of its traces in which they are alike: the same events
    and bytes in all but the first and the last few. None: their parameters differ, it has several stacks of
    them, or no more than so many.
    """
    variant = next(iter(profile.traces), None)
    runs = [run for run in profile.traces[variant][0].forward if run.stack] if variant is not None else []
    stacks = {run.stack.removeprefix(_ADAPTED) for run in runs}
    count = sum(run.count for run in runs)
    if len(stacks) != 1 or layers >= count:
        return None
    inside = re.compile(rf"(?:{re.escape(_ADAPTED)})?{re.escape(stacks.pop())}\.(\d+)\.(.*)")
    by_layer: Mapping[int, list[object]] = {number: [] for number in range(count)}
    for layer, name, parameter in _by_layer(profile.parameters, inside):
        if layer is not None:
            by_layer[layer].append(replace(parameter, name=name))
    first = by_layer[0]
    if not (bool(first) and all(layer == first for layer in by_layer.values())):
        return None
    return replace(
        profile,
        parameters=_first(profile.parameters, inside, layers),
        parameter_sets=_Each(profile.parameter_sets, lambda some: _first(some, inside, layers)),
        traces=_Each(profile.traces, lambda some: _cut(some, count, layers)),
    )


class _Each(Mapping[str, tuple[Value, ...]]):
    """What a function makes of each value, when it is asked for: a profile has dozens of variants."""

    def __init__(
        self,
        values: Mapping[str, tuple[Value, ...]],
        made: Callable[[tuple[Value, ...]], tuple[Value, ...]],
    ) -> None:
        self._values, self._make = values, made
        self._made: dict[str, tuple[Value, ...]] = {}

    def __getitem__(self, key: str) -> tuple[Value, ...]:
        if key not in self._made:
            self._made[key] = self._make(self._values[key])
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _by_layer(
    parameters: Iterable[Parameter], inside: re.Pattern[str]
) -> Iterator[tuple[int | None, str, Parameter]]:
    """(layer, name in it, parameter); None: it is in no layer."""
    for parameter in parameters:
        found = inside.fullmatch(parameter.name)
        yield (int(found[1]), found[2], parameter) if found else (None, parameter.name, parameter)


def _first(parameters: Iterable[Parameter], inside: re.Pattern[str], layers: int) -> tuple[Parameter, ...]:
    return tuple(
        parameter for layer, _, parameter in _by_layer(parameters, inside) if layer is None or layer < layers
    )


def _cut(traces: Iterable[ActivationTrace], count: int, layers: int) -> tuple[ActivationTrace, ...]:
    """Traces of ``count`` layers with so many of them, but for those in which layers are not alike."""
    found = []
    for trace in traces:
        passes = {name: getattr(trace, name) for name in ("forward", "backward", "cache", "gradients")}
        cut = {name: _without(runs, count - layers) for name, runs in passes.items()}
        if None not in cut.values() and sum(run.count for run in trace.forward if run.stack) == count:
            found.append(replace(trace, **cut))
    return tuple(found)


def _without(runs: tuple[Run, ...], less: int) -> tuple[Run, ...] | None:
    """The runs with so many segments fewer in the longest of them, later layers moved up."""
    if not runs:
        return runs
    longest = max((run for run in runs if run.stack), key=lambda run: run.count, default=None)
    if longest is None or longest.count <= less or any(run.jump for run in runs):
        return None
    low = min(longest.layers())

    def moved(run: Run) -> Run:
        if run is longest:
            start = run.start if run.step > 0 else run.start - less
            return replace(run, start=start, count=run.count - less)
        return replace(run, start=run.start - less) if run.stack and run.start > low else run

    return tuple(moved(run) for run in runs)
