"""Causes of a hang from the ranks' records alone: each kind told from its neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.launcher.supervisor.heartbeat_default import Heartbeat
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict.rank_view import RankView, view
from zerokit.launcher.verdict.why_hung import explain

TORCH = "/v/site-packages/torch/distributed/distributed_c10d.py"
SCRIPT = ["/home/me/train.py", 31, "main", "loss = engine(batch)"]


def call(number: int, operation: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return {"number": number, "count": number, "operation": operation, "group": "0", "step": 4,
            "phase": "forward", "shape": [4], "dtype": "float32", **more}  # fmt: skip


def rank(
    number: int, *calls: dict[str, Any], frames: list[list[Any]] | None = None, **known: Any
) -> RankView:
    """A rank whose last call is the one that it waits in, unless ``frames`` say otherwise."""
    record: dict[str, Any] = {
        "calls": list(calls), "groups": {"0": {"ranks": [0, 1]}, "4": {"ranks": [0, 1]}},
        "frames": [[TORCH, 10, "all_reduce", "work.wait()"], SCRIPT] if frames is None else frames,
    }  # fmt: skip
    own = ("visited", "forward", "threads", "kernel", "groups")
    record |= {key: known.pop(key) for key in own if key in known}
    recorder = known.pop("flight", None)
    return view(Path("/nowhere"), RankView(rank=number, **known), record, recorder)


def kind(*views: RankView) -> str | None:
    cause = explain(views)
    return None if cause is None else cause.kind


WAITS = call(7, inside=True)


def test_a_rank_that_is_stopped() -> None:
    cause = explain([rank(0, WAITS), rank(1, call(6), stopped=True)])
    assert cause is not None and (cause.kind, cause.ranks) == ("stopped", (1,))
    assert "rank 0 waits in all_reduce of [4] float32 (step 5, train.py:31)" in cause.what


def test_uneven_batches_are_not_a_save_on_one_rank() -> None:
    assert kind(rank(0, WAITS), rank(1, call(6), exited=True, steps=4)) == "uneven_batches"
    saving = [[TORCH, 1, "barrier", ""], ["/x/deepspeed/runtime/engine.py", 9, "save_checkpoint", ""], SCRIPT]
    cause = explain([rank(0, WAITS, frames=saving), rank(1, call(6), exited=True)])
    assert cause is not None and cause.kind == "save_on_some_ranks"
    assert "rank 0 saves alone (save_checkpoint at train.py:31)" in cause.what and "has ended" in cause.what


def test_a_rank_that_left_with_os_exit() -> None:
    cause = explain([rank(0, WAITS), rank(1, call(6), exited=True, steps=4, left_at="/home/me/train.py:80")])
    assert cause is not None and (cause.kind, cause.ranks) == ("ended_early", (1,))
    assert cause.what.startswith("rank 1 left with os._exit at train.py:80 after step 4; rank 0 waits in")


def test_a_difference_in_a_group_without_the_first_rank() -> None:
    pair = {"groups": {"0": {"ranks": [0, 1, 2, 3]}, "4": {"ranks": [2, 3]}}}
    views = [rank(0, WAITS, **pair), rank(1, WAITS, **pair),
             rank(2, call(7, group="4", inside=True), **pair),
             rank(3, call(7, "broadcast", group="4", inside=True), **pair)]  # fmt: skip
    cause = explain(views)
    assert cause is not None and (cause.kind, cause.ranks) == ("different_collectives", (2, 3))


def test_a_skipped_module_is_named_by_its_topmost_name() -> None:
    full = ["embed", "visual", "visual.blocks.0", "visual.blocks.0.fc", "head"]
    cause = explain([
        rank(0, call(7, "reduce_scatter_tensor", inside=True), visited=full, forward=[4, 4]),
        rank(1, call(7, "all_gather_into_tensor", inside=True), visited=["embed", "head"], forward=[4, 4]),
    ])  # fmt: skip
    assert cause is not None and (cause.kind, cause.ranks) == ("module_skipped", (1,))
    assert "rank 1 skipped `visual` in step 5" in cause.what and "rank 0 ran" in cause.what


def test_a_rank_that_has_not_come_so_far_skipped_nothing() -> None:
    """It waits for its data; the modules that it has not reached are not skipped."""
    loader = [["/v/site-packages/torch/utils/data/dataloader.py", 5, "_try_get_data", ""], SCRIPT]
    ahead = rank(0, WAITS, visited=["embed", "visual"], forward=[4, 4])
    assert kind(ahead, rank(1, call(6), frames=loader, visited=["embed"], forward=[4, 4])) == "data_loader"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (["/usr/lib/python3.11/threading.py", 1, "join", ""], "lock"),
        (["/home/me/train.py", 1, "main", "with self.lock:"], "lock"),
        (["/home/me/train.py", 1, "main", "x = compute()"], "elsewhere"),
        (["/v/site-packages/torch/utils/file_baton.py", 1, "wait", "time.sleep(1)"], "compilation"),
        (["/usr/lib/python3.11/subprocess.py", 1, "_try_wait", ""], "child_process"),
        (["/usr/lib/python3.11/ssl.py", 1, "read", ""], "input_output"),
    ],
)
def test_where_the_rank_is_that_the_others_wait_for(frame: list[Any], expected: str) -> None:
    cause = explain([rank(0, WAITS), rank(1, call(6), frames=[frame, SCRIPT])])
    assert cause is not None and (cause.kind, cause.ranks) == (expected, (1,))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("futex_do_wait", "lock"), ("wait_woken", "input_output"), ("anon_pipe_read", "child_process"),
     ("nfs_wait_bit_killable", "storage"), ("hrtimer_nanosleep", "sleep"), ("", "elsewhere")],
)  # fmt: skip
def test_the_kernel_tells_where_no_line_does(kernel: str, expected: str) -> None:
    assert kind(rank(0, WAITS), rank(1, call(6), frames=[SCRIPT], kernel=kernel)) == expected


def flight(*calls: dict[str, Any]) -> dict[str, Any]:
    """What PyTorch recorded; the last is the one that never ended."""
    entries = [{**call, "from_end": len(calls) - 1 - n} for n, call in enumerate(calls)]
    entries[-1]["pending"] = True
    return {"calls": entries}


def test_a_queued_collective_is_waited_in_though_the_host_is_elsewhere() -> None:
    """With NCCL the host goes on until it needs a result: `.item()` is no collective."""
    reading = [["/home/me/train.py", 40, "main", "print(loss.item())"]]
    stuck = flight({"count": 7, "operation": "all_reduce", "group": "0", "shape": [4], "dtype": "float32"})
    waiting = rank(0, call(6), call(7), call(8, "barrier", group="4"), frames=reading, flight=stuck)
    sleeping = [["/home/me/train.py", 50, "main", "time.sleep(9)"]]
    cause = explain([waiting, rank(1, call(6), frames=sleeping)])
    assert cause is not None and (cause.kind, cause.ranks) == ("sleep", (1,))
    assert "rank 0 waits in all_reduce of [4] float32 (step 5, train.py:40)" in cause.what


def test_collectives_that_cpp_starts_are_compared() -> None:
    """DDP's buckets are in PyTorch's record alone."""
    backward = [["/v/site-packages/torch/autograd/graph.py", 1, "_engine_run_backward", ""], SCRIPT]
    bucket = {"count": 3, "operation": "all_reduce", "group": "0", "shape": [10], "dtype": "float32"}
    other = {**bucket, "shape": [12]}
    views = [rank(n, frames=backward, flight=flight(entry)) for n, entry in enumerate([bucket, other])]
    cause = explain(views)
    assert cause is not None and cause.kind == "different_shapes"
    assert "rank 0 entered all_reduce of [10] float32 (train.py:31), rank 1 all_reduce of [12]" in cause.what


def test_an_evaluation_on_one_rank() -> None:
    cause = explain([rank(0, call(7, phase="eval", inside=True)), rank(1, WAITS)])
    assert cause is not None and (cause.kind, cause.ranks) == ("eval_on_some_ranks", (0,))


def test_an_evaluation_that_was_matched_with_training() -> None:
    """As NCCL does it: both ranks train on, and wait in a later collective that is not the other's."""
    gather = "all_gather_into_tensor"
    first = [
        call(89, gather, module="embed", phase="eval"),
        call(90, gather, module="head", phase="eval", shape=[8]),
    ]
    second = [call(89, gather, module="embed"), call(90, gather, module="visual", shape=[16])]
    cause = explain([rank(0, *first, call(91, inside=True)), rank(1, *second, call(91, inside=True))])
    assert cause is not None and (cause.kind, cause.ranks) == ("eval_on_some_ranks", (0,))
    assert "rank 0 entered all_gather_into_tensor of [4] float32 for embed in eval" in cause.what  # the first


def test_an_evaluation_whose_calls_are_those_of_training() -> None:
    """As two H200s recorded it: alike all through the evaluation, unlike once one rank's backward began."""
    gather, modules = "all_gather_into_tensor", ("embed", "visual", "head")
    sizes = {"embed": [8], "visual": [16], "head": [8]}

    def forward(first: int, names: tuple[str, ...], **more: Any) -> list[dict[str, Any]]:
        return [call(first + n, gather, module=m, shape=sizes[m], **more) for n, m in enumerate(names)]

    evaluates = [*forward(87, modules, phase="eval"), *forward(90, ("embed", "visual"))]
    trains = [*forward(87, modules), *forward(90, ("head", "embed"), phase="backward")]
    evaluates[-1]["inside"] = trains[-1]["inside"] = True
    cause = explain([rank(0, *evaluates), rank(1, *trains)])
    assert cause is not None and (cause.kind, cause.ranks) == ("eval_on_some_ranks", (0,))
    assert "rank 0 entered all_gather_into_tensor of [8] float32 for embed in eval" in cause.what
    # the same phases on both: what is unlike is the tensor
    together = [{**entry, "phase": "eval"} if entry["count"] < 90 else entry for entry in trains]
    assert kind(rank(0, *evaluates), rank(1, *together)) == "different_shapes"
    # they wait before anything is unlike
    alike = [dict(entry) for entry in evaluates[:3]], [dict(entry) for entry in trains[:3]]
    alike[0][-1]["inside"] = alike[1][-1]["inside"] = True
    assert kind(rank(0, *alike[0]), rank(1, *alike[1])) == "eval_on_some_ranks"


def test_native_stacks_are_read(tmp_path: Path) -> None:
    (tmp_path / "stacks-00001.native.txt").write_text(
        'Process 7: python x.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (idle): "MainThread"\n'
        "    cuMemcpyDtoH_v2 (libcuda.so)\n    item (libtorch.so)\n    main (train.py:9)\nThread 8 (idle)\n"
        "    futex_wait (libc.so)\n"
    )
    assert view(tmp_path, RankView(rank=1), None).native == ("cuMemcpyDtoH_v2", "item", "main")


def test_all_wait_but_not_in_the_same() -> None:
    assert kind(rank(0, WAITS), rank(1, call(7, "barrier", inside=True))) == "different_collectives"
    assert kind(rank(0, WAITS), rank(1, call(7, shape=[8], inside=True))) == "different_shapes"
    other = call(7, group="4", inside=True) | {"count": 1}
    assert kind(rank(0, WAITS), rank(1, call(6), other)) == "wrong_group"


def test_all_wait_in_the_same_collective() -> None:
    assert kind(rank(0, WAITS), rank(1, WAITS)) == "network"
    start = {"operation": "init_process_group", "shape": None, "inside": True}
    cause = explain([rank(0, call(1, **start)), rank(1, call(1, **start))])
    assert cause is not None and cause.kind == "network" and "where they connect" in cause.what


def test_nothing_is_claimed_without_records(tmp_path: Path) -> None:
    assert explain([view(tmp_path, RankView(rank=0), None), view(tmp_path, RankView(rank=1), None)]) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"calls": 5},
        {"frames": [[1, 2]]},
        {"groups": []},
        {"calls": [{"number": "x"}]},
        {"visited": [None], "forward": ["a"]},
        {"threads": [3]},
    ],
)
def test_a_damaged_record_is_no_traceback(tmp_path: Path, damage: dict[str, Any]) -> None:
    explain([view(tmp_path, RankView(rank=0), damage), view(tmp_path, RankView(rank=1), damage)])


def test_a_stack_is_read_where_the_rank_could_not_answer(tmp_path: Path) -> None:
    (tmp_path / "stacks-00001.txt").write_text(
        'Thread 0x1 (most recent call first):\n  File "x.py", line 1 in other\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
        '  File "/home/me/train.py", line 9 in main\n'
    )
    cause = explain([rank(0, WAITS), view(tmp_path, RankView(rank=1), None)])
    assert cause is not None and cause.kind == "lock" and "train.py:9" in cause.what


def test_a_long_quiet_is_told_once() -> None:
    heartbeat = Heartbeat(None)
    assert not heartbeat.word(0.0, 30.0, 300.0)
    assert heartbeat.word(1.0, 61.0, 300.0) and not heartbeat.word(2.0, 62.0, 300.0)
    assert not heartbeat.word(3.0, 1.0, 300.0) and heartbeat.word(4.0, 70.0, 300.0)


def test_what_may_still_come_is_no_reason_to_end_a_run() -> None:
    """Ranks at odds never get on; a download, data or a lock may."""
    sleeping = [["/home/me/callback.py", 5, "on_step_end", "time.sleep(90)"]]
    passing = explain([rank(0, WAITS), rank(1, call(6), frames=sleeping)])
    assert passing is not None and passing.kind == "sleep" and passing.may_pass
    for other in (rank(1, call(7, "barrier", inside=True)), rank(1, call(6), exited=True)):
        certain = explain([rank(0, WAITS), other])
        assert certain is not None and not certain.may_pass


def progress_of(folder: Path, heartbeat: float | None, frames: list[list[Any]], quiet: float) -> Progress:
    """Two CPU ranks after a step: rank 0 waits in a collective, rank 1 is where ``frames`` say."""
    for number in (0, 1):
        calls = [WAITS] if number == 0 else [call(6)]
        lines = [
            {"type": "start", "rank": number, "host": "elsewhere", "pid": 1, "device": "cpu"},
            {"type": "tick", "rank": number, "steps": 3, "progress": 9, "phase": "forward",
             "cpu_seconds": 1.0},
            {"type": "calls", "rank": number, "calls": calls, "groups": {"0": {"ranks": [0, 1]}},
             "frames": [[TORCH, 10, "all_reduce", ""], SCRIPT] if number == 0 else frames},
            {"type": "tick", "rank": number, "steps": 3, "progress": 9, "phase": "forward",
             "cpu_seconds": 1.0, "idle_seconds": quiet},
        ]  # fmt: skip
        (folder / f"rank-{number:05d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    progress = Progress(folder, 2, heartbeat)
    progress.poll()
    return progress


@pytest.mark.parametrize(
    ("heartbeat", "text", "quiet", "hung"),
    [
        (None, "time.sleep(90)", 65.0, False),
        (None, "time.sleep(90)", 601.0, True),  # nothing is waited for longer than ten minutes
        (30.0, "time.sleep(90)", 65.0, True),  # what a user gave is kept
    ],
)
def test_a_long_sleep_is_waited_for(
    tmp_path: Path, heartbeat: float | None, text: str, quiet: float, hung: bool
) -> None:
    progress = progress_of(tmp_path, heartbeat, [["/home/me/train.py", 5, "main", text]], quiet)
    assert (progress.hung([0, 1]) is not None) is hung
    if not hung:  # … and told of
        assert "counts as hung after 600" in str(progress.word([0, 1])).replace("10.0 min", "600")


def test_ranks_at_odds_are_not_waited_for(tmp_path: Path) -> None:
    progress = progress_of(tmp_path, None, [], 65.0)
    lines = (tmp_path / "rank-00001.jsonl").read_text().splitlines()
    other = json.dumps({"type": "calls", "rank": 1, "calls": [call(7, "barrier", inside=True)],
                        "frames": [[TORCH, 10, "barrier", ""], SCRIPT], "groups": {}})  # fmt: skip
    with (tmp_path / "rank-00001.jsonl").open("a") as file:
        file.write(other + "\n" + lines[-1] + "\n")
    progress.poll()
    assert progress.hung([0, 1]) is not None
