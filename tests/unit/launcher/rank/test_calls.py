"""What a rank remembers of its collectives, told to who asks."""

from __future__ import annotations

import inspect
import time
from collections import deque
from types import ModuleType, SimpleNamespace

import pytest

from zerokit.launcher.rank.calls import ENTRY, RING, Calls, recording
from zerokit.launcher.rank.phase_record import Identity
from zerokit.launcher.rank.probe import Probe

TENSOR = SimpleNamespace(shape=(3, 4), dtype="torch.float32")
DATA = SimpleNamespace(group_name="data")


@pytest.fixture
def probe(tmp_path):
    identity = Identity(rank=1, local_rank=1, world_size=2, host="here", device="cpu", script="train.py")
    return Probe(identity, tmp_path)


@pytest.fixture
def calls(probe):
    return Calls(probe)


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which pass where a test says so."""
    now = [0.0]
    module = SimpleNamespace(perf_counter=lambda: now[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr("zerokit.launcher.rank.calls.time", module)
    return now


@pytest.fixture
def c10d(calls, clock):
    """A module whose functions call each other as those of torch.distributed.distributed_c10d do."""
    module = ModuleType("c10d")
    text = """
class GroupMember:
    WORLD = None

def init_process_group(backend=None):
    barrier()
    GroupMember.WORLD = WORLD

def new_group(ranks=None):
    barrier()

def get_process_group_ranks(group):
    return [0, 1] if group is None else [1]

def barrier(group=None):
    inside()

def all_reduce(tensor, op=None, group=None, async_op=False):
    inside()

def all_gather(tensor_list, tensor, group=None, async_op=False):
    inside()

def all_gather_object(object_list, obj, group=None):
    all_gather(object_list, obj, group)
    all_gather(object_list, obj, group)

def all_gather_single(output_tensor, input_tensor, group=None, async_op=False):
    inside()

def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    all_gather_single(output_tensor, input_tensor, group, async_op)

def inside():
    pass
"""
    module.__dict__["WORLD"] = SimpleNamespace(group_name="0")
    exec(text, module.__dict__)  # noqa: S102
    calls.hook(module)
    return module


class Coordinator:
    def fetch_sub_module(self, current_submodule, forward):
        current_submodule.work()


@pytest.fixture
def fetch(calls):
    class Own(Coordinator):
        fetch_sub_module = Coordinator.fetch_sub_module

    calls.hook_zero3(SimpleNamespace(PartitionedParameterCoordinator=Own))
    modules = {
        name: SimpleNamespace(ds_id=number, work=lambda: None)
        for number, name in enumerate(["", "visual", "layers.0", "head"])
    }
    root = SimpleNamespace(named_modules=modules.items)
    calls.engines = lambda: [SimpleNamespace(module=root)]

    def run(name, forward=True, work=lambda: None):
        modules[name].work = work
        Own().fetch_sub_module(modules[name], forward=forward)

    return run


def operations(calls):
    return [(call["operation"], call["group"], call["count"]) for call in calls.record()["calls"]]


def test_each_call_is_counted_once_in_its_group(calls, c10d):
    c10d.init_process_group("gloo")
    c10d.all_reduce(TENSOR)
    c10d.all_reduce(TENSOR, group=c10d.WORLD)  # the same group, by its object
    c10d.all_gather_object([], 5, group=DATA)  # three calls, one of the script's
    c10d.new_group([1])
    c10d.all_reduce(TENSOR, None, DATA)
    c10d.all_gather_into_tensor(TENSOR, TENSOR)
    c10d.all_gather_single(TENSOR, input_tensor=TENSOR)
    assert operations(calls) == [
        ("init_process_group", "world", 1), ("all_reduce", "0", 1), ("all_reduce", "0", 2),
        ("all_gather_object", "data", 1), ("new_group", "0", 3), ("all_reduce", "data", 2),
        ("all_gather_into_tensor", "0", 4), ("all_gather_into_tensor", "0", 5),
    ]  # fmt: skip
    record = calls.record()
    assert record["groups"] == {"world": {"ranks": [0, 1], "calls": 1}, "0": {"ranks": [0, 1], "calls": 5},
                                "data": {"ranks": [1], "calls": 2}}  # fmt: skip
    assert (record["calls"][1]["shape"], record["calls"][1]["dtype"]) == ([3, 4], "float32")
    assert [call["number"] for call in record["calls"]] == list(range(1, 9))


def test_a_call_under_way_says_so(calls, c10d):
    observed = []
    c10d.inside = lambda: observed.append(calls.record()["calls"][-1])
    c10d.all_gather_object([], 5)
    assert observed[0]["inside"] and observed[0]["operation"] == "all_gather_object"
    assert "inside" not in calls.record()["calls"][-1]


def test_old_calls_are_forgotten_and_their_number_is_kept(calls, c10d):
    for _ in range(RING + 5):
        c10d.barrier()
    record = calls.record()["calls"]
    assert (record[-1]["number"], record[-1]["count"]) == (RING + 5, RING + 5)
    assert record[0]["number"] == record[0]["count"]


def test_a_quiet_rank_tells_what_is_new(calls, c10d):
    c10d.barrier()
    assert calls.news(1.0) is None
    assert calls.news(60.0) is not None
    assert calls.news(60.0) is None
    c10d.barrier()
    assert calls.news(60.0) is not None


def test_a_call_knows_the_module_whose_weights_are_fetched(probe, calls, c10d, fetch):
    fetch("layers.0", work=lambda: c10d.all_gather([], TENSOR))
    c10d.all_reduce(TENSOR)
    fetch("", forward=False, work=lambda: c10d.all_gather([], TENSOR))
    first, between, last = calls.record()["calls"]
    assert (first["module"], first["module_id"], first["forward"]) == ("layers.0", 2, True)
    assert "module" not in between
    assert (last["module_id"], last["forward"]) == (0, False)


def test_the_modules_of_the_last_forward(probe, calls, fetch):
    assert "visited" not in calls.record()
    for name in ("visual", "layers.0", "head"):
        fetch(name)
    probe.position = (0, 1)
    fetch("head", forward=False)
    probe.position = (1, 1)
    fetch("layers.0")
    observed = []
    fetch("head", work=lambda: observed.append(calls.record()))  # as where it hangs in this one
    for record in (*observed, calls.record()):
        assert (record["visited"], record["forward"]) == (["layers.0", "head"], [1, 1])


def test_waits_belong_to_the_phase_in_which_they_were(probe, c10d, clock):
    def two_seconds():
        clock[0] += 2.0

    probe.enter("step")
    probe.step_done()  # what was before counts for nothing
    probe.enter("forward")
    c10d.inside = two_seconds
    c10d.barrier()
    probe.enter("backward")
    c10d.barrier()
    c10d.barrier()
    work = probe.account("tick")["work"]
    assert {name: waited for name, (_, waited) in work.items()} == {
        "step": 0.0, "forward": 2.0, "backward": 4.0,
    }  # fmt: skip


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


TENSOR_call_wrapper = SimpleNamespace(shape=(2, 4), dtype="torch.float16")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, TENSOR_call_wrapper), {}),
        ((1, TENSOR_call_wrapper, "max", "G", True), {}),
        ((1,), {"input_tensor": TENSOR_call_wrapper, "group": "G", "async_op": True}),
        ((), {"async_op": True, "op": "min", "input_tensor": TENSOR_call_wrapper, "output_tensor": 5}),
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
        recording(fails, "send", recorder)([TENSOR_call_wrapper])
    assert (recorder.last()["under_way"], recorder.last()["shape"]) == (False, None)


def test_what_is_fetched_is_named_and_timed_as_a_whole():
    recorder = Recorder()
    recorder["visits"].append(7)
    recording(gather, "gather", recorder)(1, TENSOR_call_wrapper)
    assert (recorder.last()["fetched"], recorder.last()["under_way"]) == (7, False)
    assert recorder["waited"] == [0.0]


def test_what_it_calls_can_be_exchanged_while_a_step_is_sampled():
    wrapper = recording(gather, "all_gather", Recorder())
    wrapper.__globals__["original"] = lambda *args: ("timed", *args)
    assert wrapper(1, TENSOR_call_wrapper)[0] == "timed"
    wrapper.__globals__["original"] = gather
    assert wrapper(1, TENSOR_call_wrapper)[0] == "gather"
