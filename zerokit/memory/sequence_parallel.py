"""What Ulysses sequence parallelism adds to a trace of the sequence's share on one rank.

``UlyssesSPAttentionHF`` (runtime/sequence_parallel/ulysses_sp.py, 0.19.8) wraps the attention of every layer.
Bytes here are of a rank's own tokens; q of all heads, k and v of the key-value heads:

* while the core attention runs, the caller still holds q, k and v of its own tokens, beside those of all
  tokens and its share of the heads; its own go when the attention module returns (``forward``, line 233);
* at the end all of these are held, and the context (of several sequences, a copy of it in order of tokens
  too), the exchanged context and its copy in order of heads (``_partition_global_sequence``, line 202), and
  what the kernel keeps of its output for the backward pass;
* autograd keeps that output apart from the input of the output projection, which otherwise are one tensor
  where q has its heads side by side; and, with more ranks than key-value heads, k and v as often as they
  are repeated (``_combine_local_sequences``, line 160).

Batches carry their positions, so cosines and sines are made for every sequence and not once for all.

The backward pass of an exchange holds less than the attention kernel's own backward does before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from zerokit.domain.activations import ActivationTrace, Mark, Polynomial, Run
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Gpu
from zerokit.domain.profile import ModelProfile
from zerokit.domain.training_settings import TrainingSettings
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass, replace

POSITION_BYTES = 8  # int64


@frozen_dataclass
class Exchange:
    """Bytes of one token.

    Attributes:
        projected: q, k and v of one layer.
        repeated: k and v once more for every repetition of their heads.
        context: what attention gives; as large as q.
        positions: of all ranks, gathered one by one and then side by side.
        batched: a micro-batch has several sequences.
        separate: output and input of the output projection are two tensors anyway.
        joined: a rank has several heads, which are joined in a copy of the output.
    """

    projected: int
    repeated: int
    context: int
    positions: int
    batched: bool
    separate: bool
    joined: bool

    @property
    def core(self) -> int:
        """More than without exchanges while the kernel runs, at most."""
        return self.projected + self.repeated + self.positions

    @property
    def saved(self) -> int:
        """More until the layer's backward pass."""
        return self.repeated + (0 if self.separate else self.context)

    def at_its_end(self, saving: bool) -> int:
        """More when the attention's result is there, which itself counts without exchanges too."""
        contexts = 2 + self.batched + (self.joined - self.separate if saving else 0)
        return self.core + contexts * self.context


def with_sequence_peers(settings: DeepSpeedSettings, gpu: Gpu) -> DeepSpeedSettings:
    """The settings as the engine takes them where ranks share sequences: gradients travel in
    ``seq_parallel_communication_data_type`` (runtime/engine.py:2182). By default that is fp32, but 16 bits
    with NCCL 2.27.3 or later, which adds them up in fp32 (runtime/constants.py:230); RCCL is older."""
    default = "fp32" if gpu.link == "xgmi" else None
    chosen = settings.seq_parallel_communication_data_type or default
    return replace(settings, communication_data_type=chosen)


def exchange_of(profile: ModelProfile, degree: int, settings: TrainingSettings) -> Exchange | None:
    """A model's exchange over ``degree`` ranks; ``None``: its heads are not known."""
    return _exchange(profile, degree, settings.parameter_bytes, settings.micro_batch > 1)


@lru_cache(maxsize=256)
def _exchange(profile: ModelProfile, degree: int, element_bytes: int, batched: bool) -> Exchange | None:
    try:
        shape = from_config(profile.hf_config, name=profile.name)
    except InputError:
        return None
    query = shape.heads * shape.head_dim * element_bytes
    pair = 2 * shape.kv_heads * shape.head_dim * element_bytes
    repeated = pair * (max(1, degree // shape.kv_heads) - 1)
    return Exchange(
        projected=query + pair,
        repeated=repeated,
        context=query,
        positions=2 * degree * POSITION_BYTES,
        batched=batched,
        separate=_rotated_in_part(profile.hf_config),
        joined=shape.heads > degree,
    )


def _rotated_in_part(hf_config: Mapping[str, Any]) -> bool:
    """Whether q is put together of a rotated and another part, and then has its tokens side by side."""
    text = hf_config.get("text_config") or hf_config
    for section in (text, text.get("rope_parameters") or {}):
        if section.get("partial_rotary_factor", 1.0) != 1.0:
            return True
    return False


@lru_cache(maxsize=256)
def with_exchanges(trace: ActivationTrace, exchange: Exchange, checkpointed: bool) -> ActivationTrace:
    """The trace with exchanges in every layer. ``checkpointed``: a layer's forward pass keeps nothing."""
    return changed_layers(trace, lambda marks, saving: _Layer(exchange, marks, saving).marks(), checkpointed)


def changed_layers(
    trace: ActivationTrace,
    change: Callable[[tuple[Mark, ...], bool], tuple[Mark, ...]],
    checkpointed: bool,
) -> ActivationTrace:
    """The trace with each segment changed; ``change`` is told, too, whether its forward pass keeps anything,
    which one that is ``checkpointed`` does not."""
    segments: list[tuple[Mark, ...]] = []

    def changed(runs: Iterable[Run], saving: bool) -> tuple[Run, ...]:
        numbers: dict[int, int] = {}
        renumbered = []
        for run in runs:
            if run.segment not in numbers:
                numbers[run.segment] = len(segments)
                segments.append(change(trace.segments[run.segment], saving))
            renumbered.append(replace(run, segment=numbers[run.segment]))
        return tuple(renumbered)

    forward = changed(trace.forward, not checkpointed)
    backward = changed(trace.backward, True)
    # gradients: of the backward pass with modules marked, which tell where attention is
    return ActivationTrace(
        segments=tuple(segments), forward=forward, backward=backward, max_seq_len=trace.max_seq_len
    )


class _Layer:
    """One segment, mark by mark; ``level``: what the exchanges hold more than at its start."""

    def __init__(self, exchange: Exchange, marks: tuple[Mark, ...], saving: bool) -> None:
        self.exchange = exchange
        self.old = marks
        self.saving = saving
        self.outputs = output_projections(marks)
        self.level = 0
        self.done: set[str] = set()  # attention modules whose backward has passed the output projection

    def marks(self) -> tuple[Mark, ...]:
        return tuple(self._mark(mark) for mark in self.old)

    def _mark(self, mark: Mark) -> Mark:
        before, exchange = self.level, self.exchange
        peaks = [more(p, before) for p in mark.peaks]
        if mark.kind == "fwd_pre" and mark.name in self.outputs.values():
            peaks = [more(p, before + exchange.core) for p in mark.peaks]
            peaks.append(more(mark.level, before + exchange.at_its_end(self.saving)))
            if self.saving:
                self.level += exchange.projected + exchange.saved
        elif mark.kind == "fwd_post" and mark.name in self.outputs and self.saving:
            self.level -= exchange.projected
        elif mark.kind == "bwd_pre":
            self._backward(mark.name)
        return Mark(
            kind=mark.kind,
            name=mark.name,
            peaks=tuple(peaks),
            level=more(mark.level, self.level),
            after=more(mark.after, self.level),
            sums=tuple(
                replace(one, level=more(one.level, before), rows=more(one.rows, 0)) for one in mark.sums
            ),
        )

    def _backward(self, name: str) -> None:
        for module, output in self.outputs.items():
            if name == output:
                self.done.add(module)
            elif module in self.done and name.startswith(module + ".") and not name.startswith(output + "."):
                self.done.remove(module)
                self.level -= self.exchange.saved


def output_projections(marks: Iterable[Mark]) -> Mapping[str, str]:
    """Map attention modules to the child that runs last, dropout apart: before it is the attention."""
    projections: dict[str, str] = {}
    attentions: set[str] = set()
    for mark in marks:
        if mark.kind not in ("fwd_pre", "bwd_pre"):
            continue
        parent, _, child = mark.name.rpartition(".")
        if "attn" in child.lower() or "attention" in child.lower():
            attentions.add(mark.name)
        if parent not in attentions or "drop" in child.lower():
            continue
        if mark.kind == "fwd_pre":
            projections[parent] = mark.name
        else:
            projections.setdefault(parent, mark.name)  # backward begins with it
    return projections


def more(polynomial: Polynomial, bytes_per_token: float) -> Polynomial:
    """The polynomial with so many bytes more for each token, where positions are given for every sequence:
    what is of the tokens of one sequence becomes of all."""
    one, b, s, bs, ss, bss = polynomial
    return one, b, 0, bs + s + bytes_per_token, ss, bss
