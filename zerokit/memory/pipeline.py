"""The stages of a DeepSpeed pipeline, cut from a model's profile.

``PipelineModule`` (runtime/pipe/module.py, 0.19.8) divides its layers by parameters: what runs before the
stack of like layers (embeddings), each layer, and what runs after it (norm, head, loss) count as one layer
each here. A stage then is a model of its own: its parameters, and of the trace what runs in it.
``TrainSchedule`` (runtime/pipe/schedule.py:247) has stage s of p keep the activations of min(p − s,
micro-batches) micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from zerokit.domain.activations import ActivationTrace, Mark, Run, Timeline
from zerokit.domain.hardware import Processors
from zerokit.domain.profile import ModelProfile, Parameter
from zerokit.memory.rank_model import RankModel
from zerokit.values import frozen_dataclass, replace


@frozen_dataclass(eq=False)
class Stage:
    """One stage of a pipeline.

    Attributes:
        layers: of the stack, first and one past the last.
        model: parameters and trace of the stage alone.
        hidden: elements per token that go from stage to stage.
        vocabulary: elements per token of the logits.
    """

    index: int
    count: int
    layers: tuple[int, int]
    model: RankModel
    hidden: int
    vocabulary: int

    def in_flight(self, micro_batches: int) -> int:
        """Micro-batches whose activations are kept at a time."""
        return min(self.count - self.index, micro_batches)

    def timeline(
        self,
        micro_batch: int,
        tokens: int,
        micro_batches: int,
        element_bytes: int,
        processors: Processors | None = None,
    ) -> Timeline:
        """Activations of a micro-step in the steady state: this micro-batch's over those in flight.

        Beside them what the engine holds (runtime/pipe/engine.py:699-1220): a buffer each for the input and
        for the gradient that come from the neighbours; per pipeline buffer (two at least) the received input
        and its gradient, and on the last stage the logits, which nothing clears; per micro-batch in flight
        the clone of the input that the forward pass took. ``element_bytes``: of the training dtype;
        ``processors``: of the GPU.
        """
        own_timeline = self.model.trace.timeline(micro_batch, tokens, processors)
        in_flight = self.in_flight(micro_batches)
        buffers = max(2, in_flight)
        border = micro_batch * tokens * self.hidden * element_bytes
        others = (in_flight - 1) * own_timeline.after_forward
        extra = others
        if self.index:
            extra += (1 + 2 * buffers + in_flight) * border
            others += (in_flight - 1) * border
        if self.index < self.count - 1:
            extra += border
        else:
            extra += buffers * micro_batch * tokens * self.vocabulary * element_bytes
        return own_timeline.raised(extra, others)


def can_be_cut(profile: ModelProfile, trace: ActivationTrace) -> bool:
    """Whether the model is one stack of layers of a known width between what comes before and after."""
    if _hidden(profile) is None:
        return False
    stacks = {run.stack for run in trace.forward if run.stack}
    inside = [bool(run.stack) for run in trace.forward]
    first, last = (
        inside.index(True) if stacks else 0,
        len(inside) - 1 - inside[::-1].index(True) if stacks else 0,
    )
    return len(stacks) == 1 and all(inside[first : last + 1])


@lru_cache(maxsize=64)
def stages(model: RankModel, count: int) -> tuple[Stage, ...]:
    """Cut a model into ``count`` stages. ``model``: of the whole, tensor-parallel shards already taken.
    Raises ValueError: the model is not one stack of layers (ask :func:`can_be_cut` first)."""
    hidden = _hidden(model.profile)
    if hidden is None or not can_be_cut(model.profile, model.trace):
        raise ValueError("not one stack of layers of a known width")
    stack = next(run.stack for run in model.trace.forward if run.stack)
    length = sum(run.count for run in model.trace.forward if run.stack)
    owned = _owners(model, stack, length)
    weights = [sum(p.numel for p in parameters) for parameters in owned]
    parts = partition_balanced(weights, count)
    result = []
    for index, (start, stop) in enumerate(pairwise(parts)):
        layers = (max(0, start - 1), min(length, stop - 1))
        names = {p.name for layer in owned[start:stop] for p in layer}
        parameters = tuple(p for p in model.parameters if p.name in names)
        trace = _cut(model.trace, layers, before=start == 0, after=stop == len(weights))
        profile = replace(model.profile, parameters=parameters, parameter_sets={})
        result.append(
            Stage(
                index=index,
                count=count,
                layers=layers,
                model=RankModel(
                    profile=profile,
                    parameters=parameters,
                    trace=trace,
                    is_stage=True,
                    cublas_bytes=model.cublas_bytes,
                ),
                hidden=hidden,
                vocabulary=int(model.profile.hf_config.get("vocab_size", 0)),
            )
        )
    return tuple(result)


def _hidden(profile: ModelProfile) -> int | None:
    """Elements per token between layers, where the config says so at its top."""
    config = profile.hf_config
    for name in ("hidden_size", "n_embd", "d_model", "dim"):
        if isinstance(config.get(name), int):
            return int(config[name])
    return None


def _owners(model: RankModel, stack: str, length: int) -> list[list[Parameter]]:
    """Parameters of what runs before the layers, of each layer, and of what runs after; a tied weight
    is in both (``TiedLayerSpec``)."""
    before: set[str] = set()
    after: set[str] = set()
    layers = False
    for run in model.trace.forward:
        layers = layers or bool(run.stack)
        if not run.stack:
            names = {mark.name for mark in model.trace.segments[run.segment] if mark.kind == "fwd_pre"}
            (after if layers else before).update(names)
    owned: list[list[Parameter]] = [[] for _ in range(length + 2)]
    aliases: dict[str, list[str]] = {}
    for alias, name in model.profile.ties.items():
        aliases.setdefault(name, []).append(alias)
    for parameter in model.parameters:
        if parameter.name.startswith(stack + "."):
            owned[1 + int(parameter.name[len(stack) + 1 :].split(".", 1)[0])].append(parameter)
            continue
        modules = {n.rpartition(".")[0] for n in (parameter.name, *aliases.get(parameter.name, ()))}
        if modules & after:
            owned[-1].append(parameter)
        if modules & before or not modules & after:
            owned[0].append(parameter)
    return owned


def _cut(trace: ActivationTrace, layers: tuple[int, int], *, before: bool, after: bool) -> ActivationTrace:
    def clipped(runs: Sequence[Run], first: bool, last: bool) -> Iterable[Run]:
        has_start = False
        for run in runs:
            if not run.stack:
                if last if has_start else first:
                    yield run
                continue
            has_start = True
            inside = [layer for layer in run.layers() if layers[0] <= layer < layers[1]]
            if inside:
                yield replace(run, start=inside[0], count=len(inside))

    segments: tuple[tuple[Mark, ...], ...] = trace.segments
    return ActivationTrace(
        segments=segments,
        forward=tuple(clipped(trace.forward, before, after)),
        backward=tuple(clipped(trace.backward, after, before)),
        max_seq_len=trace.max_seq_len,
        gradients=tuple(clipped(trace.gradients, after, before)),
    )


def partition_balanced(weights: Sequence[int], parts: int) -> list[int]:
    """Where each part begins, and the end: ``partition_balanced`` (runtime/utils.py:627, 0.19.8).

    Its dynamic programme keeps, for every prefix and number of parts, the division whose largest and
    smallest part differ least; of equals the last.
    """
    return list(_balanced(tuple(weights), parts))


@lru_cache(maxsize=128)
def _balanced(weights: tuple[int, ...], parts: int) -> tuple[int, ...]:
    count = len(weights)
    if count <= parts:
        return tuple(min(part, count) for part in range(parts + 1))
    inf = float("inf")
    total = [0, *accumulate(weights)]
    most, least, cost = [[[inf] * (count + 1) for _ in range(parts + 1)] for _ in range(3)]
    position = [[0] * (count + 1) for _ in range(parts + 1)]
    most[0][0] = cost[0][0] = 0
    for part in range(1, parts + 1):
        most_before, least_before = most[part - 1], least[part - 1]
        for stop in range(part, count + 1):
            best, end = inf, total[stop]
            for start in range(part - 1, stop):
                size = end - total[start]
                high = most_before[start] if most_before[start] > size else size
                low = least_before[start] if least_before[start] < size else size
                if best >= high - low:
                    best = high - low
                    most[part][stop], least[part][stop], position[part][stop] = high, low, start
            cost[part][stop] = best
    bounds = [count]
    for part in range(parts, 0, -1):
        bounds.append(position[part][bounds[-1]])
    return tuple(reversed(bounds))
