"""Damaged profiles in the cache: never a traceback, never a wrong figure, never a wait."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from zerokit.catalog import profiles
from zerokit.domain.profile_json import check, to_json
from zerokit.trace import on_demand, store

CASES = 150


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    profile = profiles.load("smollm2-135m")
    assert profile is not None
    return to_json(profile)


def test_a_flipped_bit_or_a_cut_is_noticed(tmp_path: Path, good: dict[str, Any]) -> None:
    profile = profiles.load("smollm2-135m")
    assert profile is not None
    path = tmp_path / "a.profile"
    store.keep(profile, path)
    data, draw = path.read_bytes(), random.Random(8)
    assert store.read(path) is not None
    for number in range(CASES):
        at = draw.randrange(len(data))
        cut = (
            data[:at]
            if number % 5 == 0
            else data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        )
        path.write_bytes(cut)
        with pytest.raises(store.DamagedProfile):
            store.read(path)
    store.keep(profile, path)
    path.rename(tmp_path / "b.profile")  # another model's, under this one's name
    with pytest.raises(store.DamagedProfile, match="checksum"):
        store.read(tmp_path / "b.profile")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "link", "folder"):
        with pytest.raises(store.DamagedProfile):
            store.read(tmp_path / name)
    assert store.read(tmp_path / "none") is None


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LARGEST_BYTES", 1 << 20)
    path, data = tmp_path / "a.profile", gzip.compress(b" " * (64 << 20))
    path.write_bytes(store._header(data, path) + data)
    with pytest.raises(store.DamagedProfile, match="too large"):
        store.read(path)


WRONG = (None, True, -1, 1.5, "x", [], {}, [[]], {"a": 1}, 10**30, float("nan"), float("inf"), "", [None])


def _spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += _spots(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 3)):
            found += _spots(value[index], (*path, index))
    return found


def test_json_of_another_shape_is_refused_or_gives_the_same(good: dict[str, Any]) -> None:
    """A wrong value anywhere, with a right checksum: refused, or where text is free, of no effect."""
    key_paths = [key_path for key_path in _spots(good) if key_path[0] != "hf_config"]
    draw = random.Random(9)
    refused = 0
    body = copy.deepcopy(good)
    for _ in range(CASES):
        key_path, wrong = draw.choice(key_paths), draw.choice(WRONG)
        target: Any = body
        for key in key_path[:-1]:
            target = target[key]
        before = target[key_path[-1]]
        if json.dumps(before) == json.dumps(wrong):
            continue
        if isinstance(wrong, str) and isinstance(before, str):
            continue  # another name is no damage that a type shows: the checksum does
        target[key_path[-1]] = wrong
        try:
            check(body)
        except ValueError:
            refused += 1
            continue
        finally:
            target[key_path[-1]] = before
        empty = isinstance(before, list | dict) and type(before) is type(wrong) and not wrong
        same_kind = isinstance(before, int | float) and isinstance(wrong, int | float)
        assert empty or same_kind, (key_path, before, wrong)
    assert refused > CASES // 2


@pytest.mark.parametrize("kind", ["kept", "host"])  # of a frozen weight; of activations on the host
def test_every_kind_of_mark_is_read_back(kind: str, good: dict[str, Any]) -> None:
    body = copy.deepcopy(good)
    body["segments"][0][0][0] = kind
    assert check(body) is body


@pytest.mark.parametrize("part", ["parameters", "traces", "polynomials", "segments"])
def test_nothing_where_there_must_be_something(part: str, good: dict[str, Any]) -> None:
    empty: Any = type(good[part])()
    with pytest.raises(ValueError, match=r"is malformed"):
        check({**good, part: empty})


def test_a_damaged_file_is_said_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = store.cache_path({"model_type": "llama"}, None)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"zerokit.profile-cache/1 0\n")
    said: list[str] = []
    assert on_demand.cached({"model_type": "llama"}, None, said.append) is None
    assert len(said) == 1 and str(path) in said[0] and "traced again" in said[0]
    assert not path.exists()
