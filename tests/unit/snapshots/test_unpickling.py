"""The reader of snapshots, against Python's own pickle, and against files that want to be run."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.snapshots import TRUTH, recorded, unpickled, written
from zerokit.errors import InputError
from zerokit.snapshots.unpickling import SnapshotReader

_ACTIONS = {
    1: "alloc", 2: "free_requested", 3: "free_completed", 4: "segment_alloc", 5: "segment_free",
    6: "segment_map",
    7: "segment_unmap", 8: "oom",
}  # fmt: skip


def _same(reader: SnapshotReader, snapshot: dict[str, Any]) -> int:
    """Compare all values with those of Python's pickle, and count the events."""
    assert reader.value["segments"] == snapshot["segments"]
    count = 0
    for rows, trace in zip(reader.value["device_traces"], snapshot["device_traces"], strict=True):
        for row, event in zip(rows, trace, strict=True):
            assert _ACTIONS.get(reader.events.action[row], event["action"]) == event["action"]
            assert reader.events.address[row] == event.get("addr", event.get("device_free"))
            assert reader.events.size[row] == event["size"]
            frames = [(one["filename"], one["line"], one["name"]) for one in event.get("frames", ())]
            assert [tuple(frame) for frame in reader.frames(reader.events.stack[row])] == frames
            count += 1
    return count


@pytest.mark.parametrize("name", TRUTH)
def test_a_recorded_snapshot_reads_as_pickle_reads_it(name: str) -> None:
    snapshot = unpickled(name)
    assert _same(SnapshotReader(recorded(name)), snapshot) == sum(map(len, snapshot["device_traces"]))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_supported_pythons_reads_alike(tmp_path: Path, protocol: int) -> None:
    snapshot = unpickled("leak-hook")
    _same(SnapshotReader(written(tmp_path / "snapshot.pickle", snapshot, protocol)), snapshot)


def test_events_without_memoized_strings_and_with_new_keys_read_alike(tmp_path: Path) -> None:
    """As later releases write them: pool_id is a tuple, texts may be their own each time."""
    draw = random.Random(0)
    frames = [{"filename": f"/a/{n}.py", "line": n, "name": "f" * n} for n in range(1, 60)]
    stacks = [draw.sample(frames, draw.randrange(len(frames))) for _ in range(40)]
    trace = [
        {
            "action": draw.choice(["alloc", "free_requested", "free_completed", "snapshot"]),
            "addr": draw.choice([0, 255, 65_535, 1 << 30, 1 << 47]), "size": draw.choice([0, 512, 1 << 40]),
            "stream": 0, "time_us": draw.randrange(1 << 50), "compile_context": "".join(draw.choices("ab",
            k=3)),
            "user_metadata": "", "pool_id": (0, draw.randrange(300)),
            "frames": list(draw.choice(stacks)) if draw.random() < 0.5 else draw.choice(stacks),
        }
        for _ in range(3000)
    ]  # fmt: skip
    snapshot = {"segments": [], "device_traces": [trace, [dict(event) for event in trace[:7]], []]}
    reader = SnapshotReader(written(tmp_path / "snapshot.pickle", snapshot))
    assert _same(reader, snapshot) == 3007


def test_events_that_name_a_key_twice_read_as_pickle_reads_them(tmp_path: Path) -> None:
    event = {"action": "alloc", "addr": 4096, "size": 512, "xddr": 8192, "frames": []}
    snapshot = {"segments": [], "device_traces": [[dict(event) for _ in range(5)]]}
    content = pickle.dumps(snapshot, 4).replace(b"xddr", b"addr")
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    assert _same(SnapshotReader(path), pickle.loads(content)) == 5  # noqa: S301


class _Runs:
    """What runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


class _Built:
    """What is built by its class and a state."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _hostile(canary: Path) -> Iterator[bytes]:
    """Yield pickles that would make something, and such as ask for much."""
    good = {"segments": [], "device_traces": [[]], "allocator_settings": {}}
    for protocol in (2, 3, 4, 5):
        for bad in (
            _Runs(canary), [_Runs(canary)], {**good, "x": _Runs(canary)}, {**good,
            "segments": [_Runs(canary)]},
            {**good, "device_traces": [[{"action": "alloc", "addr": _Runs(canary), "size": 1}]]},
            _Built(good), {**good, "x": _Built(1)}, OrderedDict(good), {**good, "x": {1, 2}}, {**good,
            "x": 1 + 2j},
            {**good, "x": b"bytes"}, {**good, "x": frozenset((1,))}, {**good, "x": print}, {**good,
            "x": os.system},
            {**good, (1, 2): 3}, {**good, "x": range(3)}, {**good, "x": 1 << 400}, {**good,
            "x": bytearray(5)},
            {**good, "x": Path("/")}, {**good, "x": KeyError("x")}, {**good, "x": "x" * (2 << 20)},
        ):  # fmt: skip
            yield pickle.dumps(bad, protocol)
    command = f"touch {canary}".encode()
    text = b"\x8c" + bytes([len(command)]) + command
    calls = [
        b"cos\nsystem\n" + text + b"\x85R", b"\x8c\x02os\x8c\x06system\x93" + text + b"\x85R",
        b"(" + text + b"ios\nsystem\n", b"(cos\nsystem\n" + text + b"o",
        b"cbuiltins\nexec\n" + text + b"\x85R",
        b"cbuiltins\nobject\n)\x81", b"}\x8c\x01ab", b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00",
        b"Pos\n", text + b"Q", b"\x97", b"\x98", b"\x96" + struct.pack("<Q", 1 << 40), b"S'x'\n", b"Vx\n",
        b"I1\n",
        b"L1L\n", b"F1.0\n", b"\x8b" + struct.pack("<i", 1 << 30), b"\x8e" + struct.pack("<Q", 1 << 60),
        b"\x8d" + struct.pack("<Q", 1 << 60), b"X" + struct.pack("<I", 0xFFFFFFFF), b"B" + struct.pack("<I",
        1 << 31),
        b"r\xff\xff\xff\x7f", b"]r\xff\xff\xff\x7f", b"j\xff\xff\xff\x7f", b"h\x09", b"u", b"s", b"a", b"e",
        b"t",
        b"\x87", b"\x85", b"(((((" * 30, b"]" * 11_000, b"(" * 100 + b"t" * 100, b"0", b"1", b"2", b"",
        b".", b"K",
        b"N.", b"]].", b"\x8a\xff" + b"\xff" * 255, b"K\x01a", b"]K\x01u", b"}(K\x01u", b"}(]K\x01u",
        b"}()K\x01u",
        b"G\x00", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"]K\x01s", b"}K\x01e", b"]\x94h\x00a.",
        b"K\x05q\x00h\x00",
    ]  # fmt: skip
    for call in calls:
        yield b"\x80\x04" + call + b"."
        yield b"\x80\x02}X\x08\x00\x00\x00segments" + call + b"s."
    whole = recorded("cut-short").read_bytes()
    draw = random.Random(1)
    for _ in range(20):
        yield whole[: draw.randrange(len(whole) - 1)]
    for _ in range(20):
        damaged = bytearray(whole)
        damaged[draw.randrange(2, len(whole))] = ord("R")
        yield bytes(damaged[: draw.randrange(len(whole) // 2, len(whole))])


def test_hostile_files_run_nothing_and_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerokit.snapshots.unpickling._MOST_WAITING", 10_000)
    canary = tmp_path / "canary"
    refused = 0
    for number, content in enumerate(_hostile(canary)):
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(content)
        try:
            SnapshotReader(path)
        except InputError as error:
            assert str(path) in str(error)
            refused += 1
        assert not canary.exists()
    assert number >= 200
    assert refused >= 0.97 * number  # a damaged byte may be one of a text


@pytest.mark.parametrize("part", ["filename", "line", "name"])
def test_a_frame_of_other_values_is_refused(tmp_path: Path, part: str) -> None:
    path = tmp_path / "snapshot.pickle"
    frame = {"filename": "a.py", "line": 1, "name": "f", part: 0.5}
    event = {"action": "alloc", "addr": 0, "size": 1, "frames": [frame]}
    content = pickle.dumps({"segments": [], "device_traces": [[event]]}, 4)
    deep = b"]" * 3000 + b"a" * 2999
    path.write_bytes(content[:2] + content[11:].replace(pickle.dumps(0.5, 4)[11:-1], deep))
    reader = SnapshotReader(path)
    with pytest.raises(InputError, match="no list of frames"):
        reader.frames(reader.events.stack[0])


def test_a_file_of_empty_values_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerokit.snapshots.unpickling._MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.pickle"
    path.write_bytes(b"\x80\x04]" + (b"(" + b"]" * 1000 + b"e") * 30 + b".")
    with pytest.raises(InputError, match="of memory"):
        SnapshotReader(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a memory snapshot"),
        (b"SQLite format 3\0" + bytes(100), "SQLite"),
        (b"PK\x03\x04" + bytes(100), "not a memory snapshot"),
        (b"\x80\x04cos\nsystem\n.", "none was run"),
        (b"\x80\x04]\x94.", ""),
    ],
)
def test_what_is_no_snapshot_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    if not words:
        assert SnapshotReader(path).value == []
        return
    with pytest.raises(InputError, match=words):
        SnapshotReader(path)
