"""A step on its lanes, in cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from zerokit.timing import lanes, operators, playing
from zerokit.timing.operators import IssuedOperator

ISSUE, KERNEL, MESSAGE, COPY, ADAM = 1.0, 10.0, 100.0, 50.0, 200.0
ARRIVAL = lanes.ARRIVAL_SECONDS


def prices(issue: float = ISSUE, kernel: float = KERNEL, slowed: float = 1.0) -> lanes.Prices:
    return lanes.Prices(
        host=lambda event: issue,
        kernel=lambda event: kernel,
        collective=lambda event: MESSAGE,
        copy=lambda event: COPY,
        cpu_adam=lambda event: ADAM,
        slowed=lambda event: slowed,
    )


def kernels(count: int, stream: int = 0) -> list[IssuedOperator]:
    return [IssuedOperator(operators.KERNEL, "add", stream=stream, launches=1) for _ in range(count)]


SYNCHRONIZE = IssuedOperator(operators.CALL, "synchronize", synchronizes=True)


def test_the_host_paces_kernels_that_are_shorter_than_their_launch():
    played = playing.play(kernels(100), prices(issue=2.0, kernel=0.5))
    assert played.seconds == pytest.approx(200.0)
    assert played.gpu_seconds == pytest.approx(50.0)
    assert played.waited_seconds == 0


def test_the_gpu_paces_a_step_that_ends_in_a_synchronisation():
    played = playing.play([*kernels(100), SYNCHRONIZE], prices())
    # the first kernel begins when it arrives; then one after the other
    assert played.seconds == pytest.approx(ISSUE + ARRIVAL + 100 * KERNEL)
    assert played.waited_seconds == pytest.approx(played.seconds - 101 * ISSUE)


def test_without_a_synchronisation_the_launch_queue_holds_the_host_back():
    played = playing.play(kernels(2 * lanes.QUEUE), prices())
    # in its steady state the queue is full: each launch waits for a kernel to end
    assert played.seconds == pytest.approx(2 * lanes.QUEUE * KERNEL, rel=1e-6)


def test_a_synchronisation_in_the_middle_makes_the_gpu_wait_for_the_host():
    together = playing.play([*kernels(50), *kernels(50), SYNCHRONIZE], prices())
    apart = playing.play([*kernels(50), SYNCHRONIZE, *kernels(50), SYNCHRONIZE], prices())
    # the second half cannot be issued while the first one runs: a launch, its arrival and the call itself
    assert apart.seconds - together.seconds == pytest.approx(ISSUE + ARRIVAL)


def collective(handle: int) -> IssuedOperator:
    return IssuedOperator(operators.COLLECTIVE, "allreduce_", group_size=2, handle=handle)


def test_a_collective_runs_beside_kernels_until_somebody_waits_for_it():
    overlapped = [collective(1), *kernels(5), IssuedOperator(operators.JOIN, "wait", handle=1), SYNCHRONIZE]
    at_once = [collective(0), *kernels(5), SYNCHRONIZE]
    # 100 s of message beside 50 s of kernels, or before them
    assert playing.play(overlapped, prices()).seconds == pytest.approx(MESSAGE + ISSUE + ARRIVAL)
    assert playing.play(at_once, prices()).seconds == pytest.approx(MESSAGE + 5 * KERNEL + ISSUE + ARRIVAL)


@pytest.mark.parametrize(("count", "seconds"), [(20, 250.0), (21, 260.0), (4, 100.0), (6, 110.0)])
def test_kernels_beside_a_collective_take_longer(count, seconds):
    events = [collective(1), *kernels(count), IssuedOperator(operators.JOIN, "wait", handle=1), SYNCHRONIZE]
    # beside the 100 s of message, at half their speed, 50 s of kernels are done
    played = playing.play(events, prices(issue=0.0, slowed=2.0))
    assert played.seconds == pytest.approx(seconds + ARRIVAL)


def test_a_kernel_is_slowed_only_while_the_collective_runs():
    record = IssuedOperator(operators.RECORD, "event", handle=7)
    wait = IssuedOperator(operators.WAIT_EVENT, "event", stream=1, handle=7)
    message = collective(1)._replace(stream=1)
    join = IssuedOperator(operators.JOIN, "wait", handle=1)
    before, beside, after = (kernels(1) for _ in range(3))
    played = playing.play(
        [*before, record, wait, message, *beside, join, *after, SYNCHRONIZE], prices(issue=0.0, slowed=2.0)
    )
    assert played.gpu_seconds == pytest.approx(KERNEL + 2 * KERNEL + KERNEL)
    assert played.seconds == pytest.approx(KERNEL + MESSAGE + KERNEL + ARRIVAL)


def test_kernels_of_two_streams_share_the_gpu():
    events = [*kernels(10, stream=0), *kernels(10, stream=1), SYNCHRONIZE]
    played = playing.play(events, prices(issue=0.0))
    assert played.seconds == pytest.approx(20 * KERNEL + ARRIVAL, abs=KERNEL)


def test_a_stream_waits_for_an_event_of_another():
    copy = IssuedOperator(operators.TO_DEVICE, "copy_", stream=1)
    record = IssuedOperator(operators.RECORD, "event", stream=1, handle=7)
    wait = IssuedOperator(operators.WAIT_EVENT, "event", handle=7)
    free = playing.play([copy, record, *kernels(1), SYNCHRONIZE], prices(issue=0.0))
    held = playing.play([copy, record, wait, *kernels(1), SYNCHRONIZE], prices(issue=0.0))
    assert free.seconds == pytest.approx(COPY + ARRIVAL)
    assert held.seconds == pytest.approx(COPY + KERNEL + ARRIVAL)


def test_the_hosts_optimizer_is_part_of_the_step():
    played = playing.play(
        [*kernels(1), IssuedOperator(operators.CPU_ADAM, "adam_update", bytes_read=8)], prices()
    )
    assert played.seconds == pytest.approx(2 * ISSUE + ADAM)
    assert played.cpu_adam_seconds == pytest.approx(ADAM)


def test_a_step_without_operators_is_refused():
    with pytest.raises(ValueError, match="no operators"):
        playing.play([], prices())
