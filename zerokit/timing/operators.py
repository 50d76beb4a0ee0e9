"""One training step as a stream of operators: what a rehearsal records and the step-time model prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

KERNEL = "kernel"
VIEW = "view"
EMPTY = "empty"
HOST = "host"
COLLECTIVE = "collective"
JOIN = "join"
TO_DEVICE = "to_device"
TO_HOST = "to_host"
RECORD = "record"
WAIT_EVENT = "wait_event"
WAIT_STREAM = "wait_stream"
CALL = "call"
CPU_ADAM = "cpu_adam"

KINDS = frozenset(
    {
        KERNEL, VIEW, EMPTY, HOST, COLLECTIVE, JOIN, TO_DEVICE, TO_HOST, RECORD, WAIT_EVENT, WAIT_STREAM,
        CALL, CPU_ADAM,
    }
)  # fmt: skip

STRIDED = "strided"
CAST = "cast"
UNALIGNED = "unaligned"
CAUSAL = "causal"
PAGEABLE = "pageable"
TEMPORARY = "temporary"
TRITON = "triton:"
"""Begins the names of Triton functions' kernels."""


POINT_TO_POINT = frozenset({"send", "recv_"})
"""Collectives' names that go from one rank to another."""


class IssuedOperator(NamedTuple):
    """One operator, in the order in which the script issues them.

    Attributes:
        kind: one of :data:`KINDS`. ``join``: the current stream waits for the collective ``handle``;
            ``record`` and ``wait_event``: of the CUDA event ``handle``; ``wait_stream``: for the stream
            ``handle``; ``call``: of a runtime function that runs no kernel.
        thread: 0 for the script's own, others as they appeared (autograd's).
        stream: the CUDA stream it was issued to; 0 is the default one.
        shapes: of its largest tensors; a product's ``(batch, m, n, k)``; attention's query, key and value.
        layout: ``""`` for contiguous tensors of one shape and dtype, else :data:`STRIDED` (not the
            vectorised kernel), :data:`CAST`, :data:`UNALIGNED` (a product), :data:`CAUSAL` (attention)
            :data:`PAGEABLE` (a copy whose side on the host is not pinned) or :data:`TEMPORARY` (work on the
            host that writes memory which is given back once it has been copied).
        bytes_read, bytes_written: of memory; a collective's ``bytes_read`` is its whole message.
        launches: kernels.
        synchronizes: whether the host waits for it.
        python_calls, c_calls: functions entered in this thread since its last event.
        with_grad: whether autograd recorded it.
        group_size: ranks of a collective.
        handle: of an asynchronous collective, a CUDA event or a stream; 0: none.
        phase: of the training step.
        ranks: of a message, its source and its destination; of a collective of a rank that exchanges
            messages, its group; of others nothing.
    """

    kind: str
    name: str
    thread: int = 0
    stream: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""
    layout: str = ""
    flops: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    launches: int = 0
    synchronizes: bool = False
    python_calls: int = 0
    c_calls: int = 0
    with_grad: bool = False
    group_size: int = 1
    handle: int = 0
    phase: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def is_message(self) -> bool:
        """Whether it goes from one rank to another."""
        return self.kind == COLLECTIVE and self.name in POINT_TO_POINT

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written


def from_rows(rows: Iterable[Any]) -> Iterator[IssuedOperator]:
    """Events back from JSON's lists; equal ones are one object. Raises ValueError: a kind that is not
    known."""
    known: dict[IssuedOperator, IssuedOperator] = {}
    for row in rows:
        event = IssuedOperator(*(_hashable(value) if type(value) is list else value for value in row))
        if event.kind not in KINDS:
            raise ValueError(f"no kind of operator: {event.kind!r}")
        yield known.setdefault(event, event)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(one) for one in value) if isinstance(value, list) else value
