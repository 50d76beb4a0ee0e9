"""Data sets in a rehearsal: which rows stand for a large one, and those that are prepared already."""

from __future__ import annotations

from pathlib import Path

import pytest

datasets = pytest.importorskip("datasets")

from zerokit.rehearsal import data_cache  # noqa: E402
from zerokit.rehearsal.process.adapters.datasets import _inside  # noqa: E402
from zerokit.rehearsal.process.data_sample import chosen_rows, row_bytes  # noqa: E402


def test_lengths_are_those_of_text_and_numbers_in_whatever_nesting() -> None:
    rows = [
        {"text": "é" * number, "turns": [{"role": "u", "content": "x" * number}] * (number % 3),
         "tokens": [1] * number, "none": None}
        for number in range(20)
    ]  # fmt: skip
    data = datasets.Dataset.from_list(rows)
    wanted = [2 * n + (n % 3) * (1 + n) + n for n in range(20)]
    base = row_bytes(data)[0]  # a value without a length counts as one
    assert [size - base for size in row_bytes(data)] == wanted
    turned = data.select([7, 3])
    assert [size - base for size in row_bytes(turned)] == [wanted[7], wanted[3]]
    some = data.select(range(5, 9))
    assert [size - base for size in row_bytes(some)] == wanted[5:9]


def test_a_sample_has_the_longest_rows_and_some_of_every_length() -> None:
    data = datasets.Dataset.from_dict({"text": ["w" * (number * 7919 % 10_000) for number in range(10_000)]})
    chosen = chosen_rows(data, 64)
    assert chosen is not None and chosen == sorted(set(chosen))
    lengths = sorted(len(data[number]["text"]) for number in chosen)
    assert lengths[-1] == 9999 and lengths[0] < 100
    longest = [length for length in lengths if length >= 10_000 - len(chosen) * 3 // 4]
    assert len(longest) >= len(chosen) * 3 // 4
    assert sum(lengths) <= 16 << 20


def test_small_data_stays_whole_and_every_rank_gets_some_of_long_rows() -> None:
    assert chosen_rows(datasets.Dataset.from_dict({"text": ["w"] * 4096}), 64) is None
    long = datasets.Dataset.from_dict({"text": ["w" * 100_000] * 1000})
    few, many = chosen_rows(long, 64), chosen_rows(long, 512)
    assert few is not None and many is not None
    assert 64 <= len(few) <= 160 and len(many) >= 512


def test_what_was_prepared_before_is_found_and_nothing_is_put_beside_it(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    cache = data_cache.of_user({"HOME": str(home)})
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    files = {"data_files": str(tmp_path / "rows.jsonl"), "split": "train"}
    datasets.load_dataset("json", cache_dir=str(cache), **files)
    before = sorted(cache.rglob("*"))
    (tmp_path / "rows.jsonl").touch()
    data_cache.link(cache, copy)
    (prepared,) = copy.rglob("*.arrow")
    found = datasets.Dataset.from_file(str(prepared))
    found.map(lambda row: {"length": len(row["text"])}, cache_file_name=str(prepared.parent / "made.arrow"))
    assert found["text"][:] == ["a", "b"]
    assert sorted(cache.rglob("*")) == before


def test_a_part_that_no_row_of_the_sample_is_in_gets_rows_all_the_same() -> None:
    assert _inside(range(5), 10) == range(5)
    assert _inside(range(5, 15), 10) == [5, 6, 7, 8, 9]
    assert _inside(range(32, 35), 10) == [2, 3, 4]
    assert _inside([], 10) == []


def test_a_link_that_leads_nowhere_is_no_obstacle(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "loop").symlink_to(cache / "loop")
    (cache / "there").write_text("x")
    data_cache.link(cache, tmp_path / "copy")
    assert (tmp_path / "copy" / "there").read_text() == "x"


def test_the_cache_is_where_the_environment_says() -> None:
    assert data_cache.of_user({"HF_DATASETS_CACHE": "/x", "HF_HOME": "/y"}) == Path("/x")
    assert data_cache.of_user({"HF_HOME": "/y", "HOME": "/h"}) == Path("/y/datasets")
    assert data_cache.of_user({"XDG_CACHE_HOME": "/z"}) == Path("/z/huggingface/datasets")
