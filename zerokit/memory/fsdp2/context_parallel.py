"""What context parallelism adds to a trace of the sequence's share on one rank.

Accelerate's (accelerator.py:1660, 1.15) is torch's ``context_parallel``: ring attention around SDPA's kernel
(``_templated_ring_attention`` and its backward, torch 2.13, tensor/experimental/_context_parallel/
_attention.py:366 and 489), which works in as many rounds as ranks share a sequence. Bytes are of a rank's own
tokens; the most of all these ranks is counted:

* forward holds keys and values of all of them (``allgather``), or of two rounds (``alltoall``), and in the
  second round, the first whose result is merged: the merged context in fp32, the kernel's of this round, as
  it is and in fp32, their difference and what is taken of it;
* backward holds the gradient of the queries and, three times, those of keys and values in fp32 (its own,
  those it sends, those it gets), keys and values sent in the first round, the kernel's gradients of that
  round, and what the kernel takes in the second;
* a rank whose last round is of the second half of its queries alone puts its context together head by head
  (``_partial_update``), so that the output projection keeps a copy in order of tokens;
* a rank has two parts of a sequence, whose positions Transformers takes for those of packed sequences, and
  makes a mask of a byte a pair (``find_packed_sequence_indices``, masking_utils.py:750, 5.23), which
  checkpointed layers keep; to the kernel goes none.
"""

from __future__ import annotations

from functools import lru_cache, partial

from zerokit.domain.activations import ActivationTrace, Mark, Polynomial
from zerokit.domain.model_shape import ModelShape
from zerokit.memory.sequence_parallel import changed_layers, more, output_projections
from zerokit.values import frozen_dataclass, replace

_FP32 = 4


@frozen_dataclass
class Ring:
    """Bytes of one token on one rank of ``ranks``.

    Attributes:
        queries: of all heads, and as large the context. pair: keys and values.
        statistics: the logarithm of the sum of exponentials of every head.
        gathers: keys and values of all ranks come at once.
    """

    ranks: int
    queries: int
    pair: int
    statistics: int
    gathers: bool

    @property
    def _exchanged(self) -> int:
        """Keys and values of other ranks, and its own among them."""
        return self.pair * (self.ranks if self.gathers else min(self.ranks, 3) - 1)

    @property
    def forward(self) -> int:
        """More than before the kernel, at most; its result is among it."""
        return 9 * self.queries + self._exchanged + 3 * self.statistics

    @property
    def backward(self) -> int:
        """More than before the kernel's backward, at most: the second round with half of the keys, or with
        half of the queries."""
        wide = 2 * self.queries + 3 * 2 * self.pair
        held = wide + self._exchanged + self.pair + self.queries + self.pair
        # of fewer heads of keys the kernel makes gradients for every head of the queries, and sums them up
        is_grouped = self.pair < 2 * self.queries
        half_keys = (3 + is_grouped) * self.queries + self.pair // 2
        half_queries = (1.5 + 2 * is_grouped) * self.queries + self.pair
        return held + int(max(half_keys, half_queries)) + self.statistics


def ring_of(shape: ModelShape, ranks: int, element_bytes: int, rotation: str) -> Ring:
    """A model's ring over so many ranks."""
    return Ring(
        ranks=ranks,
        queries=shape.heads * shape.head_dim * element_bytes,
        pair=2 * shape.kv_heads * shape.head_dim * element_bytes,
        statistics=shape.heads * _FP32,
        gathers=rotation == "allgather",
    )


@lru_cache(maxsize=256)
def with_ring(trace: ActivationTrace, ring: Ring, checkpointed: bool) -> ActivationTrace:
    """The trace with a ring in every layer. ``checkpointed``: a layer's forward pass keeps nothing."""
    changed = changed_layers(trace, partial(_with_ring, ring), checkpointed)
    return _with_mask(changed) if checkpointed else changed


def _with_mask(trace: ActivationTrace) -> ActivationTrace:
    """The trace with a byte for each pair of tokens, from before the first layer to the end of backward."""
    segments, first, last = [*trace.segments], trace.forward[0].segment, trace.backward[-1].segment
    segments[first] = tuple(
        replace(
            mark, peaks=tuple(map(_more_pairs, mark.peaks)), level=_more_pairs(mark.level),
            after=_more_pairs(mark.after),
        )
        for mark in segments[first]
    )  # fmt: skip
    *others, end = segments[last]
    segments[last] = (*others, replace(end, after=_more_pairs(end.after, -1)))
    return ActivationTrace(
        segments=tuple(segments), forward=trace.forward, backward=trace.backward,
        max_seq_len=trace.max_seq_len,
    )  # fmt: skip


def _more_pairs(polynomial: Polynomial, bytes_per_pair: float = 1) -> Polynomial:
    *others, pairs = polynomial
    return (*others, pairs + bytes_per_pair)  # type: ignore[return-value]


def _with_ring(ring: Ring, marks: tuple[Mark, ...], saving: bool) -> tuple[Mark, ...]:
    """One segment; ``copied``: what copies of contexts hold more than at its start."""
    outputs, copied, changed = output_projections(marks), 0, list[Mark]()
    passed = set[str]()  # attention modules whose backward has passed the output projection
    before: Polynomial = (0.0,) * 6
    for mark in marks:
        peaks, entered = [more(peak, copied) for peak in mark.peaks], copied
        if mark.kind == "fwd_pre" and mark.name in outputs.values():
            after = ring.queries + ring.statistics
            peaks.append(more(mark.level, copied - after + ring.forward))
            copied += ring.queries if saving else 0
        for module, output in outputs.items():
            inside = mark.name.startswith(f"{module}.")
            if mark.kind == "bwd_pre" and mark.name == output:
                passed.add(module)
            elif module in passed and inside and not f"{mark.name}.".startswith(f"{output}."):
                passed.remove(module)
                copied -= ring.queries
                peaks.append(more(before, copied + ring.backward))
        changed.append(
            replace(
                mark, peaks=tuple(peaks), level=more(mark.level, copied), after=more(mark.after, copied),
                sums=tuple(
                    replace(one, level=more(one.level, entered), rows=more(one.rows, 0)) for one in mark.sums
                ),
            )
        )  # fmt: skip
        before = mark.after
    return tuple(changed)
