"""Any Hugging Face config → a :class:`~zerokit.domain.profile.ModelProfile`, by tracing the real model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.hf_classes import pads_to_chunks
from zerokit.domain.profile import ModelProfile, Parameter, Variant
from zerokit.errors import InputError
from zerokit.trace.building.build import BuiltModel, build
from zerokit.trace.building.planned_parts import peers
from zerokit.trace.recording.fit import (
    MICRO_BATCHES,
    ONE,
    TraceMismatch,
    fit,
    holds_for_one,
    plain_points,
    points,
)
from zerokit.trace.recording.offloading import on_host
from zerokit.trace.recording.record import leaf_modules, record, saved_views
from zerokit.trace.recording.serving import record_serving
from zerokit.trace.recording.storage import TraceEvent

_LENGTHS = (128, 256, 512)
_SHORT = (16, 80)
_MOST_EVENTS = 50_000
"""Allocations and frees of a step that are traced: about 40 seconds in all."""


def windows(hf_config: Mapping[str, Any]) -> int | None:
    """The sliding window in tokens, where the config has one in use."""
    for values in (hf_config, *(v for v in hf_config.values() if isinstance(v, Mapping))):
        window = values.get("sliding_window")
        if isinstance(window, int) and window > 0 and values.get("use_sliding_window", True):
            return window
    return None


def _lengths_by_regime(built: BuiltModel, offset: int = 0) -> list[tuple[tuple[int, ...], int | None]]:
    """Sequence lengths to trace, and up to which length what they show holds; ``offset``: tokens of images,
    which every sequence has."""
    config = built.config
    if built.head == "image-classification":
        return [((128,), None)]
    # fixed position tables bound the length; fake tensors cost the same at any length
    limit = getattr(config, "max_target_positions", None) or 1 << 30
    if limit < max(_LENGTHS):
        return [((limit // 4, limit // 2, limit - limit % 2), None)]
    window = windows(config.to_dict())
    lengths = tuple(offset + length for length in _LENGTHS)
    if window is None:
        return [(lengths, None)]
    if offset:
        above = tuple(max(window, offset) + extra for extra in _LENGTHS)
        room = window - offset
        below = tuple(offset + room * part // 8 for part in (2, 4, 6))
        return [*([(below, window - 1)] if room > 64 else []), (above, None)]
    below = tuple(max(8, window * part // 8) for part in (2, 4, 6))
    above = tuple(window + extra for extra in (128, 256, 512))
    return [(below, window - 1), (above, None)]


def _fitted(
    built: BuiltModel, variant: Variant, lengths: tuple[int, ...], limit: int | None, shortest: int
) -> list[ActivationTrace]:
    """A training step, recorded at these lengths; with one sequence again where it runs other operators."""
    sizes = points(lengths)
    (*events, one), plain = record(built, variant, [*sizes, (*ONE, lengths[-1])], plain_points(sizes))
    traces = [_of_events(built, variant, events, plain, lengths, limit, shortest, MICRO_BATCHES)]
    if not holds_for_one(events, lengths, one):
        sizes = points(lengths, ONE)
        events, plain = record(built, variant, sizes, plain_points(sizes))
        # what is too small to offload depends on the length too: the trace of larger batches stands for both
        with contextlib.suppress(TraceMismatch):
            traces.append(_of_events(built, variant, events, plain, lengths, limit, shortest, ONE))
    return traces


def _of_events(
    built: BuiltModel,
    variant: Variant,
    events: list[list[TraceEvent]],
    plain: list[list[TraceEvent]],
    lengths: tuple[int, ...],
    limit: int | None,
    shortest: int,
    micro_batches: tuple[int, ...],
) -> ActivationTrace:
    copies: list[list[TraceEvent]] = []
    if variant.offloaded:
        plain = [on_host(one)[0] for one in plain]
        events, copies = map(list, zip(*map(on_host, events), strict=True))
    return fit(events, lengths, built.stacks, limit, autocast=variant.autocast, plain=plain,
               min_seq_len=shortest, copies=copies, micro_batches=micro_batches)  # fmt: skip


def _traces(
    hf_config: Mapping[str, Any], head: str | None, variant: Variant, built: BuiltModel, seq_len: int | None
) -> tuple[ActivationTrace, ...]:
    if variant.phase == "train" and pads_to_chunks(built.config.get_text_config().to_dict()):
        if seq_len is None:
            raise InputError("state-space and linear-attention layers are traced for one sequence length")
        # traces that hold for sequences of this length alone: state-space and linear-attention layers pad
        # it to whole chunks, and run more operators the longer it is
        short = [(MICRO_BATCHES[0], length) for length in _SHORT]
        hooked = replace(variant, zero3_linear=True)  # one pass
        brief, longer = (
            len(record(_attention(hf_config, head, hooked), hooked, [point], [])[0][0]) for point in short
        )
        more = max(0, longer - brief) * seq_len // (_SHORT[1] - _SHORT[0])
        if more > _MOST_EVENTS:
            raise InputError(
                f"its layers run one operator after the other over {seq_len:,} tokens, too many to trace "
                f"(some {more:,} allocations)"
            )
        return tuple(_fitted(_attention(hf_config, head, variant), variant, (seq_len,), seq_len, seq_len))
    traces = []
    offset = variant.images.sequence_tokens if variant.images is not None else 0
    for lengths, limit in _lengths_by_regime(built, offset):
        if variant.phase == "train":
            traces += _fitted(built, variant, lengths, limit, offset)
        else:
            events, kept = record_serving(built, variant, points(lengths))
            traces.append(fit(events, lengths, built.stacks, limit, kept))
    return tuple(traces)


def _attention(hf_config: Mapping[str, Any], head: str | None, variant: Variant) -> BuiltModel:
    """Build with the attention asked for, or eager where the model has no other (as Transformers does)."""
    try:
        return build(hf_config, variant, head=head)
    except InputError as error:
        if variant.attention == "eager" or "attention" not in str(error):
            raise
        return build(hf_config, replace(variant, attention="eager"), head=head)


def _own_parameters(variant: Variant) -> bool:
    """Whether the parameters of the variant are others than the model's."""
    changed = variant.autocast or variant.quantization != "none"
    frozen = variant.images is not None and variant.images.tower == "frozen"
    return bool(variant.lora_rank) or variant.tensor_parallel > 1 or changed or frozen


def profile_from_config(
    hf_config: Mapping[str, Any],
    variants: Iterable[Variant],
    *,
    name: str,
    family: str = "",
    head: str | None = None,
    seq_len: int | None = None,
) -> ModelProfile:
    """Trace a model from its config: no weights, no GPU, no network, no remote code.

    Args:
        seq_len: for which to trace a model whose operators depend on the length; ``None``: it is refused.

    Raises:
        InputError: Transformers cannot build the model.
        TraceMismatch: its operators depend on batch or sequence beyond a polynomial.
    """
    import transformers

    traces: dict[str, tuple[ActivationTrace, ...]] = {}
    parameter_sets: dict[str, tuple[Parameter, ...]] = {}
    parameters: tuple[Parameter, ...] = ()
    leaves: set[str] = set()
    ties: dict[str, str] = {}
    buffer_bytes = 0
    variants = list(variants)
    unchanged = Variant(images=variants[0].images if variants else None)
    if all(_own_parameters(v) for v in variants):
        eager_model = build(hf_config, Variant(attention="eager", images=variants[0].images), head=head)
        parameters = tuple(Parameter(name=p.name, shape=p.shape) for p in eager_model.parameters)
        ties = eager_model.ties
    for variant in variants:
        with peers(variant.tensor_parallel if variant.by_plan else 1):
            built = _attention(hf_config, head, variant)
            head = built.head
            if variant.phase == "decode" and head != "causal":
                continue  # one pass, and nothing is generated
            buffer_bytes = max(buffer_bytes, built.buffer_bytes)
            if _own_parameters(variant):
                parameter_sets[variant.key] = built.parameters
            else:
                parameters = built.parameters
            leaves |= {name.rpartition(".")[2] for name in leaf_modules(built.model)}
            ties |= built.ties  # under adapters the names are others
            traces[variant.key] = _traces(hf_config, head, variant, built, seq_len)
    return ModelProfile(
        name=name,
        family=family or str(hf_config.get("model_type", "")),
        head=head or "",
        hf_config=dict(hf_config),
        parameters=parameters,
        traces=traces,
        parameter_sets=parameter_sets,
        ties=ties,
        buffer_bytes=buffer_bytes,
        leaves=tuple(sorted(leaves)),
        views=saved_views(_attention(hf_config, head, unchanged), unchanged),
        torch_version=torch.__version__.split("+")[0],
        transformers_version=transformers.__version__,
    )
