"""Ranks that exchange messages, played together, in cases that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from zerokit.timing import operators, playing
from zerokit.timing.lanes import Prices
from zerokit.timing.operators import IssuedOperator

LARGE, SMALL = 16 << 20, 4
FORWARD, BACKWARD = 2.0, 5.0
SYNCHRONIZE = IssuedOperator(operators.CALL, "synchronize", synchronizes=True)


def prices(message: float = 0.0, issue: float = 0.0) -> Prices:
    return Prices(
        host=lambda event: issue,
        kernel=lambda event: event.flops,
        collective=lambda event: message,
        copy=lambda event: 0.0,
        cpu_adam=lambda event: 0.0,
    )


def kernel(seconds: float) -> IssuedOperator:
    return IssuedOperator(operators.KERNEL, "mm", launches=1, flops=seconds)


class Script:
    """The operators of one rank, with messages as PyTorch issues them: asynchronous, then waited for."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: list[IssuedOperator] = []
        self._handles = 0

    def start(self, name: str, ranks: tuple[int, ...], size: int) -> int:
        self._handles += 1
        self.events.append(
            IssuedOperator(
                operators.COLLECTIVE, name, bytes_read=size, group_size=len(ranks), handle=self._handles,
                ranks=ranks,
            )
        )  # fmt: skip
        return self._handles

    def wait(self, handle: int) -> None:
        self.events.append(IssuedOperator(operators.JOIN, "wait", handle=handle))

    def send(self, to: int, size: int = LARGE) -> None:
        self.wait(self.start("send", (self.rank, to), size))

    def receive(self, source: int, size: int = LARGE) -> None:
        self.wait(self.start("recv_", (source, self.rank), size))

    def run(self, seconds: float) -> None:
        self.events.append(kernel(seconds))


def one_forward_one_backward(
    stages: Sequence[tuple[float, float]], micro_batches: int, size: int = LARGE
) -> dict[int, list[IssuedOperator]]:
    """The stages' steps as DeepSpeed's ``TrainSchedule`` orders them: seconds of a forward and a backward."""
    scripts = {}
    last = len(stages) - 1
    for stage, (forward, backward) in enumerate(stages):
        script, before = Script(stage), None
        for slot in range(2 * (micro_batches + last)):
            goes_forward = (slot + stage) % 2 == 0
            number = (slot - stage if goes_forward else slot - 2 * last - 1 + stage) // 2
            now = number if 0 <= number < micro_batches else None
            neighbour = stage - 1 if goes_forward else stage + 1
            if 0 <= neighbour <= last:
                # gradients go first: sent before an activation is received, received before one is sent
                if goes_forward and before is not None:
                    script.send(neighbour, size)
                if now is not None:
                    script.receive(neighbour, size)
                if not goes_forward and before is not None:
                    script.send(neighbour, size)
            if now is not None:
                script.run(forward if goes_forward else backward)
            before = now
        script.events.append(SYNCHRONIZE)
        scripts[stage] = script.events
    return scripts


@pytest.mark.parametrize("size", [LARGE, SMALL])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (3, 8), (4, 4), (4, 12), (5, 3)])
def test_equal_stages_take_the_published_time_of_1f1b(stages, micro_batches, size):
    streams = one_forward_one_backward([(FORWARD, BACKWARD)] * stages, micro_batches, size)
    played = playing.play_together(streams, prices())
    # Narayanan et al. 2021 (arXiv:2104.04473), section 2.2: m micro-batches and a bubble of p − 1 more
    each = FORWARD + BACKWARD
    for one in played.values():
        assert one.seconds == pytest.approx((micro_batches + stages - 1) * each, abs=1e-3)
        assert one.gpu_seconds == pytest.approx(micro_batches * each)


def test_two_stages_exchange_two_messages_between_micro_batches():
    streams = one_forward_one_backward([(FORWARD, BACKWARD)] * 2, 8)
    played = playing.play_together(streams, prices(message=0.25))
    # the second stage's way: an activation first, between micro-batches a gradient and the next activation,
    # at the end a gradient for the first stage's last backward
    assert played[0].seconds == pytest.approx(9 * (FORWARD + BACKWARD) + 0.25 + 7 * 2 * 0.25 + 0.25, abs=1e-3)
    assert played[0].message_seconds == pytest.approx(16 * 0.25)


def test_the_slowest_stage_paces_the_others():
    stages = [(1.0, 2.0), (1.5, 2.5), (1.0, 1.0), (3.0, 5.0)]
    played = playing.play_together(one_forward_one_backward(stages, 8), prices())
    # the last one begins after a forward of each before it and never waits; then a backward of each
    assert [one.seconds for one in played.values()] == pytest.approx([3 + 4 + 2 + 8 * 8] * 4, abs=1e-3)


def test_a_slow_first_stage_is_fed_by_gradients():
    played = playing.play_together(one_forward_one_backward([(3.0, 5.0), (1.0, 2.0)], 6), prices())
    # it never waits: each gradient comes back in 3 s, while it does the next forward
    assert [one.seconds for one in played.values()] == pytest.approx([6 * (3 + 5)] * 2, abs=1e-3)


def test_a_collective_begins_when_its_last_rank_has_come():
    streams = {}
    for rank, seconds in ((4, 10.0), (6, 30.0)):
        script = Script(rank)
        script.run(seconds)
        script.wait(script.start("allreduce_", (4, 5, 6, 7), LARGE))  # 5 and 7 are as far as these
        streams[rank] = [*script.events, SYNCHRONIZE]
    played = playing.play_together(streams, prices(message=5.0))
    assert [one.seconds for one in played.values()] == pytest.approx([35.0, 35.0], abs=1e-3)


@pytest.mark.parametrize(("size", "seconds"), [(SMALL, 1.0), (LARGE, 51.0)])
def test_a_send_that_fits_into_a_buffer_waits_for_no_receiver(size, seconds):
    sender, receiver = Script(0), Script(1)
    sender.send(1, size)
    receiver.run(50.0)
    receiver.receive(0, size)
    streams = {0: [*sender.events, SYNCHRONIZE], 1: [*receiver.events, SYNCHRONIZE]}
    assert playing.play_together(streams, prices(message=1.0))[0].seconds == pytest.approx(seconds, abs=1e-3)


def test_messages_of_a_ring_that_are_under_way_together():
    streams = {}
    for rank in (0, 1, 2):
        script = Script(rank)
        script.run(10.0 * rank)
        receive = script.start("recv_", ((rank - 1) % 3, rank), LARGE)
        send = script.start("send", (rank, (rank + 1) % 3), LARGE)
        script.wait(receive)
        script.wait(send)
        streams[rank] = [*script.events, SYNCHRONIZE]
    played = playing.play_together(streams, prices(message=1.0))
    # one that waits for rank 2 waits for its 20 s, as do all in the long run
    assert [one.seconds for one in played.values()] == pytest.approx([21.0, 21.0, 21.0], abs=1e-2)


def test_work_between_the_call_and_the_wait_hides_a_message():
    sender, receiver = Script(0), Script(1)
    sender.run(10.0)
    sender.send(1, SMALL)
    handle = receiver.start("recv_", (0, 1), SMALL)
    receiver.run(8.0)
    receiver.wait(handle)
    streams = {0: [*sender.events, SYNCHRONIZE], 1: [*receiver.events, SYNCHRONIZE]}
    played = playing.play_together(streams, prices(message=1.0))
    assert played[1].seconds == pytest.approx(11.0, abs=1e-3)


def test_ranks_whose_messages_do_not_match_have_no_step():
    first, second = Script(0), Script(1)
    first.receive(1)
    second.receive(0)
    with pytest.raises(ValueError, match="no other rank comes to: 0, 1"):
        playing.play_together({0: first.events, 1: second.events}, prices())


def test_a_rank_alone_takes_the_others_to_be_as_far():
    streams = one_forward_one_backward([(FORWARD, BACKWARD)] * 4, 8)
    played = playing.play(streams[1], prices(message=0.25))
    assert played.seconds == pytest.approx(8 * (FORWARD + BACKWARD) + 4 * 8 * 0.25, abs=1e-3)
