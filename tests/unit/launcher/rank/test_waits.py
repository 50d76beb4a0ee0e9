"""What a sampled step tells, on a stand-in for CUDA: streams that know their time, events that note it."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.launcher.rank import waits
from zerokit.launcher.rank.waits import GpuWaits


class Stream:
    def __init__(self, number: int) -> None:
        self.cuda_stream, self.milliseconds = number, 0.0

    def synchronize(self) -> None:
        Device.compute.milliseconds += 2.0


class Device:
    compute: Stream
    current: Stream
    late = False  # the GPU has yet to come to what is queued
    capturing = False


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Stream) -> None:
        self.at = stream.milliseconds

    def query(self) -> bool:
        return not Device.late

    def elapsed_time(self, event: Event) -> float:
        return event.at - self.at

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Device.current).milliseconds += 5.0

    def synchronize(self) -> None:
        Device.compute.milliseconds += 1.0


class Work:
    def wait(self) -> bool:
        Device.current.milliseconds += 10.0
        return True


def blocking_all_reduce(size: int) -> int:
    Work().wait()  # a wait within a wait is one
    return size


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A rank whose phase and time go on by hand."""
    Device.compute = Device.current = Stream(0)
    Device.late = Device.capturing = False
    cuda = SimpleNamespace(
        is_initialized=lambda: True, current_stream=lambda: Device.current, Event=Event, Stream=Stream,
        synchronize=lambda: None, is_current_stream_capturing=lambda: Device.capturing,
    )  # fmt: skip
    distributed = SimpleNamespace(is_initialized=lambda: True, get_backend=lambda: "nccl")
    binding = SimpleNamespace(_distributed_c10d=SimpleNamespace(Work=Work))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, distributed=distributed, _C=binding))
    for owner, name in ((Work, "wait"), (Event, "wait"), (Event, "synchronize"), (Stream, "synchronize")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    result = SimpleNamespace(
        waits=GpuWaits(), phase="other", caller={"original": blocking_all_reduce}, cuda=cuda,
        distributed=distributed,
    )  # fmt: skip
    ticking = iter(range(10**9))
    clock = SimpleNamespace(perf_counter=lambda: 0.0001 * next(ticking), monotonic=lambda: next(ticking))
    monkeypatch.setattr(waits, "time", clock)
    result.waits.attach(lambda: result.phase, [result.caller])
    return result


def compute(milliseconds: float) -> None:
    Device.compute.milliseconds += milliseconds


def enter(rank: Any, phase: str) -> None:
    rank.waits.charge(rank.phase)
    rank.phase = phase


def train(rank: Any, step: int) -> None:
    """One step: 3 ms between steps, 20 + 5 forward, 40 + 10 backward, 4 + 2 at its end."""
    compute(3.0)
    enter(rank, "forward")
    compute(20.0)
    side = Stream(7)
    Event().wait(side)  # another stream waits: it is not the one that computes
    Event().wait()
    enter(rank, "backward")
    hook = threading.Thread(target=lambda: rank.caller["original"](1))  # autograd's
    compute(40.0)
    hook.start()
    hook.join()
    enter(rank, "step")
    side.synchronize()
    compute(4.0)
    rank.waits.step_done(step)
    enter(rank, "other")


WORK = {"other": [0.003, 0.0], "forward": [0.025, 0.005], "backward": [0.05, 0.01], "step": [0.006, 0.002]}


def test_each_phase_and_what_of_it_was_waited(rank: Any) -> None:
    originals = Work.wait, Event.wait, Event.synchronize, Stream.synchronize
    for step in range(1, 10):
        train(rank, step)
        sampled = step + 1 in (3, 4, 5, 6, 8)
        assert (Work.wait is not originals[0]) == sampled, step
        assert (rank.caller["original"] is not blocking_all_reduce) == sampled
    assert (Work.wait, Event.wait, Event.synchronize, Stream.synchronize) == originals
    told = rank.waits.account()
    assert list(told["sampled_work"]) == ["3", "4", "5", "6", "8"] and rank.waits.in_charge
    assert all(work == WORK for work in told["sampled_work"].values())
    assert told["sampling"]["every"] >= 4


def test_a_gpu_that_is_behind_is_read_later(rank: Any) -> None:
    Device.late = True
    for step in range(1, 5):
        train(rank, step)
    assert rank.waits.account() == {}
    Device.late = False
    train(rank, 5)
    assert list(rank.waits.account()["sampled_work"]) == ["3", "4", "5"]


def test_only_the_newest_samples_are_kept(rank: Any) -> None:
    for step in range(1, 101):
        train(rank, step)
    steps = [int(step) for step in rank.waits.account()["sampled_work"]]
    assert len(steps) == 8 and steps[-1] > 60 and all(step % 4 == 0 for step in steps)


def test_what_it_costs_decides_how_often(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = iter(range(10**9))
    # a millisecond for each event, and a step that goes on for as many milliseconds as the clock is asked
    clock = SimpleNamespace(
        perf_counter=lambda: 0.001 * next(ticking), monotonic=lambda: 0.001 * next(ticking)
    )
    monkeypatch.setattr(waits, "time", clock)
    for step in range(1, 5):
        train(rank, step)
    sampling = rank.waits.account()["sampling"]
    assert sampling["cost_seconds"] > 0.005
    assert sampling["every"] in (512, 1024)  # the cost is 0.5 to 1 of a step: a thousandth of these


def test_not_measured(rank: Any) -> None:
    rank.distributed.get_backend = lambda: "gloo"
    for step in range(1, 9):
        train(rank, step)
    assert rank.waits.account() == {} and not rank.waits.in_charge
    rank.distributed.get_backend = lambda: "cpu:gloo,cuda:nccl"
    Device.capturing = True  # events in a graph have no time
    for step in range(9, 17):
        train(rank, step)
    assert rank.waits.account() == {"sampling": {"why_not": "steps are captured as CUDA graphs"}}
    assert rank.waits.in_charge
    assert rank.caller["original"] is blocking_all_reduce


def test_a_step_without_waits_tells_nothing(rank: Any) -> None:
    for step in range(1, 9):
        enter(rank, "forward")
        compute(5.0)
        rank.waits.step_done(step)
        enter(rank, "other")
    told = rank.waits.account()
    assert told == {"sampling": {"why_not": "no collective of these steps is started by Python"}}


def test_errors_of_the_driver_stay_away_from_the_script(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Event, stream: Stream) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    train(rank, 1)
    train(rank, 2)
    assert rank.caller["original"] is not blocking_all_reduce
    monkeypatch.setattr(Event, "record", refuse)
    train(rank, 3)
    assert rank.caller["original"] is blocking_all_reduce
    assert "an illegal memory access" in rank.waits.account()["sampling"]["why_not"]


def test_the_scripts_own_error_comes_through(rank: Any) -> None:
    def broken(size: int) -> int:
        raise ValueError("sizes differ")

    rank.caller["original"] = broken
    train_until = 2
    for step in range(1, train_until + 1):
        rank.waits.step_done(step)
    with pytest.raises(ValueError, match="sizes differ"):
        rank.caller["original"](1)


def test_what_the_script_puts_there_itself_stays(rank: Any) -> None:
    def theirs(size: int) -> int:
        return 2 * size

    rank.waits.step_done(1)
    rank.waits.step_done(2)  # the third is sampled
    rank.caller["original"] = theirs
    rank.waits.step_done(3)
    assert rank.caller["original"] is theirs
    rank.waits.step_done(4)
    assert rank.caller["original"] is theirs
