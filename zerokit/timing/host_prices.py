"""Seconds that a host needs to issue one operator, and how much faster or slower one is than another.

The reference host is the one of ``h200-operators.jsonl`` (16 cores of an Intel Xeon, torch 2.11.0): its
figures are measured there, operator by operator. Hosts of one kind differ by half and more.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.timing import operators
from zerokit.timing.kernel_prices import is_product
from zerokit.timing.operators import PAGEABLE, TEMPORARY, IssuedOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrices:
    """Of the reference host. Seconds, where nothing else is said.

    Attributes:
        in_a_model: what an operator takes in a model over what it takes in a loop of its own, where every
            cache is warm: with it, forward and backward of the 16 Llama layers that hosts are probed with
            take the seconds measured here (52 ms, ``h200-operators.jsonl``). Only 3 % of them are Python.
        python_call: a function entered, body included; a C function takes ``c_call_share`` of it. A module's
            call with two hooks, warm and in a loop, takes 0.58 us for each of its five at this host's speed
            (``host-parts.json``); as an operator it takes ``in_a_model`` times that in a model. Scripts under
            ZeRO-3 seemed to leave 0.70, by probes that ran through DeepSpeed's ``linear``
            (``zerokit.doctor.host_probe``). A generator that goes on is no call: 16 ns there.
        kernel: an operator that launches a kernel; ``autograd``: more of it where it is recorded,
            ``backward``: more in autograd's thread (the node around it).
        triton: of a Triton function, whose launcher is Python: 14 arguments, 22 us at the reference host's
            speed, where 4 take 17 (``triton-launches.jsonl``; Triton 3.6).
        product: what a matrix product takes more: cuBLAS chooses its kernel.
        launch: a further kernel of the same operator.
        collective: to enqueue one.
    """

    python_call: float = 0.93e-6
    c_call_share: float = 1 / 3
    in_a_model: float = 1.61
    kernel: float = 9.0e-6
    triton: float = 22.0e-6
    autograd: float = 2.0e-6
    backward: float = 3.5e-6
    product: float = 10.0e-6
    attention: float = 15.0e-6
    launch: float = 4.0e-6
    view: float = 1.6e-6
    view_autograd: float = 1.3e-6
    empty: float = 4.0e-6
    copy: float = 12.0e-6
    collective: float = 60.0e-6
    event: float = 2.0e-6
    synchronize: float = 7.7e-6
    item: float = 6.0e-6
    host_operator: float = 3.0e-6


REFERENCE = HostPrices()
_CASTS = ("copy_", "_to_copy")
_LARGE_TEMPORARY_BYTES = 1 << 25
"""From where on glibc gives memory back when it is freed, so that it is new each time (``mallopt(3)``)."""
_TOUCHED_BYTES_PER_SECOND = 41e9
"""Pages that 16 cores touch first. ZeRO-3's six copies of offloaded weights in a trace of ``wide.offload.z3``
(an H200's host) cast 2.0 and 0.5 GB in 63 ms for each GB; into pinned memory ``doctor`` cast there in 39."""
_RETURNED_BYTES_PER_SECOND = 33e9
"""Pages that one thread gives back, in the same copies: 29 to 31 ms for each GB, once 48."""


def issue_seconds(event: IssuedOperator, prices: HostPrices = REFERENCE) -> float:
    """To issue one event, on the reference host, the Python before it included; not to move its bytes."""
    calls = event.python_calls + prices.c_call_share * event.c_calls
    return calls * prices.python_call + prices.in_a_model * _itself(event, prices)


def moved_bytes(event: IssuedOperator) -> float:
    """Read and written in the host's memory."""
    if event.kind == operators.HOST:
        return event.bytes
    staged = event.kind in (operators.TO_DEVICE, operators.TO_HOST) and event.layout == PAGEABLE
    return event.bytes_read if staged else 0.0


def narrows(event: IssuedOperator) -> bool:
    """Whether it casts the host's memory to narrower elements, which is slower than work in place."""
    return (
        event.kind == operators.HOST and event.name in _CASTS and 0 < event.bytes_written < event.bytes_read
    )


def temporary_seconds(event: IssuedOperator) -> float:
    """For the pages of a large temporary, which are new each time: their first touch and their return."""
    if event.layout != TEMPORARY or event.bytes_written < _LARGE_TEMPORARY_BYTES:
        return 0.0
    return event.bytes_written * (1 / _TOUCHED_BYTES_PER_SECOND + 1 / _RETURNED_BYTES_PER_SECOND)


def _itself(event: IssuedOperator, prices: HostPrices) -> float:
    kind = event.kind
    if kind == operators.KERNEL:
        return _kernel(event, prices)
    if kind == operators.VIEW:
        return prices.view + (prices.view_autograd if event.with_grad else 0.0)
    if kind == operators.EMPTY:
        return prices.empty
    if kind == operators.COLLECTIVE:
        return prices.collective
    if kind in (operators.TO_DEVICE, operators.TO_HOST):
        return prices.copy
    if kind == operators.HOST:
        return prices.host_operator
    return 0.0 if kind == operators.CPU_ADAM else prices.event


def _kernel(event: IssuedOperator, prices: HostPrices) -> float:
    first = prices.triton if event.name.startswith(operators.TRITON) else prices.kernel
    took = first + prices.launch * (max(1, event.launches) - 1)
    if event.thread:
        took += prices.backward
    if event.with_grad:
        took += prices.autograd
    if is_product(event):
        took += prices.product
    elif event.flops:
        took += prices.attention
    return took + (prices.item if event.synchronizes else 0.0)
