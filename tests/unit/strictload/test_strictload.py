"""Strict YAML and JSON: right values, right places, and nothing that hangs or blows up."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from zerokit.errors import FileInputError, InputError
from zerokit.strictload import load_json, load_yaml, parse_json, parse_yaml
from zerokit.strictload.document import MAX_BYTES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 5e8", 5e8),
        ("a: 5.e8", 5e8),
        ("a: 1e-5", 1e-5),
        ("a: .5", 0.5),
        ("a: 1_000_000", 1_000_000),
        ("a: -3", -3),
        ("a: 0x1F", 31),
        ("a: yes", True),
        ("a: 'no'", "no"),
        ("a: 5e8x", "5e8x"),
        ("a: 70b", "70b"),
        ("a: 1:30", "1:30"),
        ("a: 2024-01-02", "2024-01-02"),
        ("a:", None),
        ("a: ~", None),
        ("a: '5e8'", "5e8"),
        ("a: !!str 5", "5"),
        ("a: [1, {b: 2}]", [1, {"b": 2}]),
        ("\ufeffa: 1", 1),
    ],
)
def test_yaml_values(text: str, value: object, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    read = load_yaml(file).value["a"]
    assert read == value and type(read) is type(value)


def test_yaml_places_of_keys() -> None:
    document = parse_yaml("top:\n  first: 1\n  list:\n    - x\n    - y: 2\n")
    assert document.location(("top", "first")) == (2, 3)
    assert document.location(("top", "list", 1, "y")) == (5, 7)
    assert document.location(("top", "absent")) == (1, 1)


def test_yaml_aliases_and_merge_keys_are_read() -> None:
    document = parse_yaml("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nalso: *b\n")
    assert document.value["use"] == {"y": 3, "x": 1}
    assert document.value["also"] == {"x": 1, "y": 2}


BILLION = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    ("text", "location", "message"),
    [
        ("a: 1\na: 2\n", ":2:1", "duplicate key 'a' (first in line 1)"),
        ("a:\n  b: {}\n  b: 1\n", ":3:3", "duplicate key"),
        ("a: !!python/object:os.system x\n", ":1:4", "tag"),
        ("a: !mine x\n", ":1:4", "tag"),
        ("a: .nan\n", ":1:4", "finite"),
        ("a: -.inf\n", ":1:4", "finite"),
        ("a: 1e400\n", ":1:4", "too large"),
        ("a: 010\n", ":1:4", "leading zero"),
        ("a: 1\n---\nb: 2\n", ":2:1", "second document"),
        ("", ":1:1", "empty"),
        ("# only a comment\n", ":1:1", "empty"),
        ("a: [1, 2\n", ":2:1", ""),
        ("a: 1\n\tb: 2\n", ":2:1", "tab"),
        ("a: &x [1, *x]\n", ":1:11", "contains itself"),
        ("a: *nobody\n", ":1:4", "not defined"),
        (BILLION, "", "more than"),
        ("[" * 2000 + "]" * 2000, "", ""),
        ("a:\n" + "".join(" " * i + "- \n" for i in range(1, 300)), "", "nested deeper"),
        ("? [a]\n: 1\n", "", "as a key"),
        ("a: " + "9" * 5000, ":1:4", "5000 digits"),
    ],
)
def test_yaml_refused_with_the_place(text: str, location: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(FileInputError) as caught:
        load_yaml(file)
    assert f"{file}{location}" in str(caught.value)
    assert message in str(caught.value)


def test_alias_bomb_costs_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(FileInputError):
        parse_yaml(BILLION)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_large_fifo_and_device_files_are_refused_unread(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(100 << 20)
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    for path, message in (
        (large, "bytes"),
        (fifo, "regular file"),
        (Path("/dev/zero"), "regular file"),
        (tmp_path, "regular file"),
        (tmp_path / "absent.yaml", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            load_yaml(path)
    assert MAX_BYTES < 100 << 20


@pytest.mark.parametrize("load", [load_yaml, load_json])
def test_encodings(load: Any, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b'{"a": 1,\n "b": "\xe9"}')
    with pytest.raises(FileInputError, match=r"a:2:8: byte 0xe9 is not UTF-8"):
        load(file)
    file.write_bytes('{"a": 1}'.encode("utf-16"))
    with pytest.raises(FileInputError, match="UTF-16"):
        load(file)
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert load(file).value == {"a": 1}


@pytest.mark.parametrize(
    ("text", "location", "message"),
    [
        ('{\n "a": 1,\n "a": 2}', ":3:2", "duplicate key 'a' (first in line 2)"),
        ('{\n "a": 1, // why\n "b": 2}', ":2:10", "comment"),
        ('{"a": 1,\n}', ":1:8", "comma before"),
        ('{"a": NaN}', ":1:7", "not a number"),
        ('{"a": -Infinity}', ":1:7", "not a number"),
        ('{"a": 1e400}', ":1:7", "too large"),
        ('{"a": True}', ":1:7", "write true"),
        ("{'a': 1}", ":1:2", "double quotes"),
        ("{a: 1}", ":1:2", "double quotes"),
        ('{"a": 1\n "b": 2}', ":1:8", "comma missing"),
        ('{"a": 1} x', ":1:10", "after the end"),
        ('{"a": "x}', ":1:7", "closing quote"),
        ('{"a": 1', ":1:8", "file ends"),
        ("", ":1:1", "empty"),
        ('{"a": 5e}', ":1:7", "not a JSON value"),
        ("[" * 2000, "", "nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", ":1:7", "5000 digits"),
        ('{"a": "\\x"}', ":1:8", "escape"),
    ],
)
def test_json_refused_with_the_place(text: str, location: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(FileInputError) as caught:
        load_json(file)
    assert f"{file}{location}" in str(caught.value)
    assert message in str(caught.value)


def test_lenient_json_reads_past_and_notes() -> None:
    text = '{ # one\n "a": [1, 2,], /* two\n */ "b": NaN, "a": 3,\n}'
    document = parse_json(text, strict=False)
    assert document.value == {"a": 3, "b": None}
    assert [problem.rule for problem in document.problems] == [
        "json-comment", "json-trailing-comma", "json-comment", "not-finite", "duplicate-key",
        "json-trailing-comma",
    ]  # fmt: skip


finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | finite | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)  # fmt: skip


@given(json_values, st.booleans())
@hypothesis_settings(max_examples=200, deadline=None)
def test_json_agrees_with_the_standard_library(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    read = parse_json(text).value
    if "\\ud" not in text.lower():
        assert read == value


# without digits: PyYAML leaves text such as 5e8 and 0e0 without quotes, and we read numbers there
no_digits = st.text(st.characters(exclude_categories=("N", "Cs")))
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | finite | no_digits,
    lambda children: st.lists(children) | st.dictionaries(no_digits, children),
    max_leaves=20,
)


@given(plain_values)
@hypothesis_settings(max_examples=150, deadline=None)
def test_yaml_reads_back_what_pyyaml_writes(value: Any) -> None:
    text = yaml.safe_dump(value, sort_keys=False)
    assert parse_yaml(text).value == yaml.safe_load(text) == value


@given(st.binary(max_size=200), st.sampled_from([load_yaml, load_json]))
@hypothesis_settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_value_or_a_file_error(tmp_path_factory: Any, data: bytes, load: Any) -> None:
    file = tmp_path_factory.mktemp("any") / "file"
    file.write_bytes(data)
    try:
        load(file)
    except FileInputError as error:
        assert str(file) in str(error)


@given(st.text(alphabet="{}[]:,-&*!|>'\"#%@` \n\ta1~.<", max_size=60))
@hypothesis_settings(max_examples=300, deadline=None)
def test_any_punctuation_gives_a_value_or_a_file_error(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        with contextlib.suppress(FileInputError):
            parse(text)


def test_what_goes_on_is_one_problem() -> None:
    text = '{"a": 1,\n// one\n// another\n"a": 2, "a": 3, "b": 4, "b": 5} # end'
    problems = parse_json(text, "x.json", strict=False).problems
    assert [(problem.rule, problem.location.line) for problem in problems] == [
        ("json-comment", 2), ("duplicate-key", 4), ("duplicate-key", 4), ("json-comment", 4)
    ]  # fmt: skip


def test_of_a_duplicate_key_the_last_value_counts_as_pyyaml_has_it() -> None:
    text = "a:\n  b: 1\n  c: 2\nd: 3\na:\n  b: 4\n  b: 5\n"
    document = parse_yaml(text, strict=False)
    assert document.value == yaml.safe_load(text) == {"a": {"b": 5}, "d": 3}
    assert [(problem.rule, problem.location.line) for problem in document.problems] == [
        ("duplicate-key", 5), ("duplicate-key", 7)
    ]  # fmt: skip
    assert "this value counts, not that of line 6" in document.problems[1].message
    assert ("a", "c") not in document.keys
