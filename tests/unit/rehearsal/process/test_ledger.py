"""What is reserved while another stream still works with freed blocks."""

from __future__ import annotations

import weakref

import pytest

from zerokit.rehearsal.process.allocator import MIB, AllocatorSettings
from zerokit.rehearsal.process.ledger import STILL_LIVE, History, peak_reserved_bytes
from zerokit.timing import operators
from zerokit.timing.lanes import Prices
from zerokit.timing.operators import IssuedOperator

SIDE = 1
PRICES = Prices(
    host=lambda event: 1e-3,
    kernel=lambda event: 10e-3,
    collective=lambda event: 0.0,
    copy=lambda event: 0.0,
    cpu_adam=lambda event: 0.0,
)
"""The GPU needs ten times what the host needs to issue a kernel."""


def gathered(*, synchronizes: bool = False, records: bool = True, emptied: bool = False) -> int:
    """Three weights of 30 MiB in turn: gathered on a side stream, used by a kernel of the default one, freed.
    Returns the most that was reserved."""
    history, events, clocks, clock = History(), [], [], 0
    events.append(IssuedOperator(operators.VIEW, "begin"))
    clocks.append(clock)
    for number in range(3):
        clock += 1
        history.born.append(clock)
        history.requested_bytes.append(30 * MIB)
        history.block_bytes.append(30 * MIB)
        history.stream.append(SIDE)
        events.append(IssuedOperator(operators.KERNEL, "mm", synchronizes=synchronizes))
        clocks.append(clock)
        clock += 1
        history.died.append(clock)
        if records:
            history.other_streams[number] = {0}
        if emptied:
            clock += 1
            history.emptied.append(clock)
        events.append(IssuedOperator(operators.VIEW, "next"))
        clocks.append(clock)
    return peak_reserved_bytes(history, AllocatorSettings.parse(""), events, clocks, PRICES)


def test_a_block_that_another_stream_uses_is_taken_until_that_has_caught_up() -> None:
    assert gathered() == 90 * MIB


@pytest.mark.parametrize("what", [{"synchronizes": True}, {"records": False}, {"emptied": True}])
def test_it_is_used_again_where_the_stream_is_done_or_never_used_it(what: dict[str, bool]) -> None:
    assert gathered(**what) == 30 * MIB


def test_a_block_that_stays_and_an_unrecorded_step_change_nothing() -> None:
    history = History()
    history.born.extend((1, 3))
    history.died.extend((2, STILL_LIVE))
    history.requested_bytes.extend((30 * MIB, 30 * MIB))
    history.stream.extend((SIDE, SIDE))
    history.other_streams[0] = {0}
    assert peak_reserved_bytes(history, AllocatorSettings.parse(""), [], [], PRICES) == 30 * MIB


torch = pytest.importorskip("torch")

from zerokit.rehearsal.process.ledger import (  # noqa: E402
    GpuMemory,
    Unwaited,
)
from zerokit.rehearsal.process.summary import freed  # noqa: E402


def test_a_steps_tensors_stay_until_the_next_steps_first_collective() -> None:
    unwaited = Unwaited(GpuMemory(AllocatorSettings.parse("")))
    tensor = torch.zeros(1 << 20)
    held = weakref.ref(tensor)
    unwaited.put([tensor])
    del tensor
    unwaited.collective_issued()
    assert held() is not None
    unwaited.step_done()
    assert held() is not None
    unwaited.collective_issued()
    assert held() is None


def test_every_phase_of_training_is_a_lower_bound_then() -> None:
    ledger = GpuMemory(AllocatorSettings.parse(""))
    unwaited = Unwaited(ledger)
    for phase in ("load", "forward", "step"):
        ledger.enter(phase)
    assert unwaited.note() is None and not ledger.lower_bounds
    for _ in range(2):
        unwaited.put([torch.zeros(1 << 20)])
        unwaited.step_done()
    note = unwaited.note()
    assert note is not None and "4.0 MiB for each step" in note
    assert set(ledger.lower_bounds) == {"forward", "step"}


@pytest.mark.parametrize(("unit", "freed_by_half"), [(32, 10), (48, 34)])
def test_half_the_batch_leaves_gradients_of_gathered_weights_as_they_are(
    unit: int, freed_by_half: int
) -> None:
    """One unit of FSDP gathers weights of 32 MiB; backward makes 20 MiB, and ``unit`` before it reduces."""
    ledger = GpuMemory(AllocatorSettings.parse(""))
    ledger.origin = lambda operator, size: (ledger.phase, operator, "", "")
    ledger.enter("forward")
    with ledger.gathering():
        weights = ledger.hold(32 * MIB, "all_gather")
    ledger.enter("backward")
    blocks = [ledger.hold(size * MIB, "mm") for size in (unit, 20)]
    for block in (*blocks, weights):
        ledger.release(block)
    ledger.enter("step")
    assert freed(ledger)["batch"] == freed_by_half * MIB
