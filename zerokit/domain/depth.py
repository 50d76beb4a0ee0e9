"""A model with fewer layers than it has: for what a rehearsal of a few layers says of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from zerokit.domain.activations import ActivationTrace, Run
from zerokit.domain.profile import ModelProfile, Parameter
from zerokit.values import replace


def at_depth(profile: ModelProfile, layers: int) -> ModelProfile | None:
    """The model with so many of its layers; None where they are not all alike, or not so many more.

    Layers are alike where their parameters have the same names and shapes and a trace of the whole model
    found the same events and bytes in them, but for the first and the last few.
    """
    stacks = {run.stack for traces in profile.traces.values() for one in traces for run in one.forward} - {""}
    count = _layers(profile, stacks)
    if count is None or layers >= count or not _are_alike(profile.parameters, stacks, count):
        return None
    traces: dict[str, tuple[ActivationTrace, ...]] = {}
    for key, found in profile.traces.items():
        cut = [_cut(trace, count - layers) for trace in found]
        if None in cut:
            return None
        traces[key] = tuple(trace for trace in cut if trace is not None)
    return replace(
        profile,
        parameters=_first(profile.parameters, stacks, layers),
        parameter_sets={key: _first(part, stacks, layers) for key, part in profile.parameter_sets.items()},
        traces=traces,
    )


def _layers(profile: ModelProfile, stacks: Iterable[str]) -> int | None:
    """How many its one stack has, in each of its traces; None: it has several, or none."""
    if len({stack.removeprefix("base_model.model.") for stack in stacks}) != 1:
        return None
    counts = {
        sum(run.count for run in trace.forward if run.stack)
        for traces in profile.traces.values()
        for trace in traces
    }
    return counts.pop() if len(counts) == 1 else None


def _by_layer(
    parameters: Iterable[Parameter], stacks: Iterable[str]
) -> Iterator[tuple[int | None, str, Parameter]]:
    """(layer, name in it, parameter); None: it is in no layer."""
    inside = re.compile(rf"(?:{'|'.join(map(re.escape, stacks))})\.(\d+)\.(.*)")
    for parameter in parameters:
        found = inside.fullmatch(parameter.name)
        yield (int(found[1]), found[2], parameter) if found else (None, parameter.name, parameter)


def _are_alike(parameters: Sequence[Parameter], stacks: Iterable[str], count: int) -> bool:
    by_layer: Mapping[int, list[object]] = {number: [] for number in range(count)}
    for layer, name, parameter in _by_layer(parameters, stacks):
        if layer is not None:
            by_layer[layer].append(replace(parameter, name=name))
    first = by_layer[0]
    return bool(first) and all(layer == first for layer in by_layer.values())


def _first(parameters: Iterable[Parameter], stacks: Iterable[str], layers: int) -> tuple[Parameter, ...]:
    return tuple(
        parameter for layer, _, parameter in _by_layer(parameters, stacks) if layer is None or layer < layers
    )


def _cut(trace: ActivationTrace, less: int) -> ActivationTrace | None:
    passes = {name: getattr(trace, name) for name in ("forward", "backward", "cache", "gradients")}
    cut = {name: _without(runs, less) for name, runs in passes.items()}
    if None in cut.values():
        return None
    return replace(trace, **cut)


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
