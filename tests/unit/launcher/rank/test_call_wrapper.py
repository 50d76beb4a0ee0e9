"""The wrapper has the parameters of what it wraps, passes all of them on, and leaves an entry of the call."""

from __future__ import annotations

import inspect
from collections import deque
from types import SimpleNamespace

import pytest

from zerokit.launcher.rank.call_wrapper import ENTRY, recording


def gather(output_tensor, input_tensor, op="sum", group=None, async_op=False):
    return ("gather", output_tensor, input_tensor, op, group, async_op)


def object_list(objects, /, *more, group, tag=3, **others):
    return (objects, more, group, tag, others)


class Recorder(dict):
    def __init__(self) -> None:
        self.entries: list[list[object]] = []
        self.groups: dict[int, SimpleNamespace] = {}
        super().__init__(
            inside=set(), thread=lambda: 1, by_id=self.groups, find=self.find, visits=deque([(2, 3)]),
            probe=SimpleNamespace(position=(2, 3), phase="forward"), remember=self.entries.append,
            clock=iter(range(100)).__next__, waited=[0.0],
        )  # fmt: skip

    def find(self, group: object) -> SimpleNamespace:
        return self.groups.setdefault(id(group), SimpleNamespace(name=f"of {group}", count=0))

    def last(self) -> dict[str, object]:
        return dict(zip(ENTRY, self.entries[-1], strict=True))


TENSOR = SimpleNamespace(shape=(2, 4), dtype="torch.float16")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, TENSOR), {}),
        ((1, TENSOR, "max", "G", True), {}),
        ((1,), {"input_tensor": TENSOR, "group": "G", "async_op": True}),
        ((), {"async_op": True, "op": "min", "input_tensor": TENSOR, "output_tensor": 5}),
    ],
)
def test_all_is_passed_on_and_what_it_was_is_kept(args, kwargs):
    recorder = Recorder()
    wrapper = recording(gather, "all_gather", recorder)
    expected = gather(*args, **kwargs)
    assert wrapper(*args, **kwargs) == wrapper(*args, **kwargs) == expected
    assert recorder.last() == {
        "count": 2, "operation": "all_gather", "group": f"of {expected[4]}", "shape": (2, 4),
        "dtype": "torch.float16", "fetched": (2, 3), "position": (2, 3), "phase": "forward",
        "under_way": False,
    }  # fmt: skip
    assert recorder["waited"] == [2]  # of the clock, which counts its readings
    assert inspect.signature(wrapper) == inspect.signature(gather)


def test_every_sort_of_parameter_reaches_the_function():
    wrapper = recording(object_list, "object_list", Recorder())
    assert wrapper(1, 2, 3, group="G", other=5) == (1, (2, 3), "G", 3, {"other": 5})
    with pytest.raises(TypeError, match="object_list"):
        wrapper(1)


def test_a_call_of_a_call_is_none_of_its_own():
    recorder = Recorder()
    recorder["inside"].add(1)
    assert recording(gather, "gather", recorder)(1, 2)[1] == 1
    assert recorder.entries == []


def test_an_error_leaves_the_entry_as_ended():
    recorder = Recorder()

    def fails(tensor, group=None):
        assert recorder.last()["under_way"]
        raise ValueError("no peer")

    with pytest.raises(ValueError, match="no peer"):
        recording(fails, "send", recorder)([TENSOR])
    assert (recorder.last()["under_way"], recorder.last()["shape"]) == (False, None)


def test_what_is_fetched_is_named_and_timed_as_a_whole():
    recorder = Recorder()
    recorder["visits"].append(7)
    recording(gather, "gather", recorder)(1, TENSOR)
    assert (recorder.last()["fetched"], recorder.last()["under_way"]) == (7, False)
    assert recorder["waited"] == [0.0]


def test_what_it_calls_can_be_exchanged_while_a_step_is_sampled():
    wrapper = recording(gather, "all_gather", Recorder())
    wrapper.__globals__["original"] = lambda *args: ("timed", *args)
    assert wrapper(1, TENSOR)[0] == "timed"
    wrapper.__globals__["original"] = gather
    assert wrapper(1, TENSOR)[0] == "gather"
