"""Text to numbers and back: units never mix, and what could mean two numbers is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit import units
from zerokit.errors import InputError


@pytest.mark.parametrize(
    ("text", "number"),
    [("70b", 70_000_000_000), ("350m", 350_000_000), ("1.3e9", 1_300_000_000),
     ("70_553_706_496", 70_553_706_496),
     ("0.5K", 500), (" 2T ", 2 * 10**12), (7, 7), ("1G", 10**9)],
)  # fmt: skip
def test_counts(text: object, number: int) -> None:
    assert units.parse_count(text) == number


@pytest.mark.parametrize(
    ("words", "counted"),
    [(("rank",), "1 rank"), (("process", "processes"), "1 process"), (("more GPU",), "1 more GPU")],
)
def test_one_of_something_is_not_several(words: tuple[str, ...], counted: str) -> None:
    assert units.counted(1, *words) == counted
    assert units.counted(1.0, *words) == counted
    assert units.counted(2, *words) == f"2{counted[1:]}{'es' if len(words) > 1 else 's'}"
    assert units.counted(0, "step") == "0 steps" and units.counted(16384, "GPU") == "16,384 GPUs"
    assert units.counted(1.5, "core") == "1.5 cores"
    assert [units.times(number) for number in (1, 2)] == ["once", "2 times"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("80GiB", 85_899_345_920), ("81559MiB", 85_520_809_984), ("24gib", 25_769_803_776),
     ("1.5 KiB", 1536), ("1b", 1), ("1e3MB", 10**9)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["4096", "4_096", "4,096", " 4,096 ", 4096, 4096.0])
def test_whole_numbers(text: object) -> None:
    assert units.parse_positive_int(text, "--seq-len") == 4096


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (units.parse_positive_int, "4,09", "cannot read"),
        (units.parse_positive_int, "0,096", "cannot read"),
        (units.parse_count, "7q", "unknown suffix 'q'"),
        (units.parse_count, "0", "at least 1"),
        (units.parse_count, "1e30", r"beyond 10\*\*18"),
        (units.parse_count, "-5", "cannot read"),
        (units.parse_count, True, "expected a number"),
        (units.parse_count, None, "expected a number"),
        (units.parse_count, "9" * 5000, "too long"),
        (units.parse_count, "1e999", "not a finite number"),
        (units.parse_count, "nan", "cannot read"),
        (units.parse_bytes, "80", "a unit is missing"),
        (units.parse_bytes, "80GO", "unknown unit 'go'"),
        (units.parse_bytes, "0.1b", "more than zero bytes"),
        (units.parse_bytes, "2048PiB", "beyond an exabyte"),
    ],
)
def test_what_is_no_number_is_refused(read: object, text: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(text, "count")  # type: ignore[operator]


def test_a_whole_number_with_a_suffix_may_mean_two_and_names_both() -> None:
    with pytest.raises(InputError, match=r"may mean 4096 or 4000"):
        units.parse_positive_int("4k", "seq_len")
    with pytest.raises(InputError, match="9 must be at most 8"):
        units.parse_positive_int(9, "stage", maximum=8)
    with pytest.raises(InputError, match="whole number"):
        units.parse_positive_int("2.5", "gpus")
    assert units.parse_positive_int("1_024", "seq_len") == 1024


@given(st.integers(1, 10**18))
def test_a_count_that_is_shown_is_read_back_within_half_of_its_last_digit(number: int) -> None:
    assert units.parse_count(units.format_count(number)) == pytest.approx(number, rel=0.0051)


@pytest.mark.parametrize(
    ("shown", "text"),
    [(units.format_gib(80 * 2**30), "80.00 GiB"), (units.format_gib(1234.5 * 2**30, 1), "1,234.5 GiB"),
     (units.format_gib(0.1 * 2**30), "0.10 GiB"), (units.format_gib(0.099 * 2**30), "101.4 MiB"),
     (units.format_gib(0.5 * 2**30, 0), "0.5 GiB"), (units.format_gib(1 << 20, 1), "1.0 MiB"),
     (units.format_gib(1000), "1.0 KiB"), (units.format_gib(80), "80 B"), (units.format_gib(0, 1), "0 B"),
     (units.format_gib(0.05 * 2**30, 0), "51.2 MiB"), (units.format_gib(-(3 << 20), 1), "-3.0 MiB"),
     (units.format_count(70_553_706_496), "70.6B"), (units.format_count(1_235_814_400), "1.24B"),
     (units.format_count(12), "12"), (units.format_seconds(0.85), "850 ms"),
     (units.format_seconds(12.34), "12.3 s"),
     (units.format_seconds_range(2.61, 2.62), "2.6 s"),
     (units.format_seconds_range(2.6, 3.14), "2.6 s to 3.1 s"),
     (units.format_seconds(250), "4.2 min"), (units.format_seconds(11_160), "3.1 h"),
     (units.format_seconds(207_360), "2.4 d")],
)  # fmt: skip
def test_numbers_for_people(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50GB", 50 * 10**9), ("50GB/s", 50 * 10**9), ("50 GBps", 50 * 10**9), ("2GiB/s", 2 << 30),
        ("400Gb/s", 50 * 10**9), ("400Gbps", 50 * 10**9), ("400gbps", 50 * 10**9), ("400Gbit/s", 50 * 10**9),
        ("1.6Tb/s", 200 * 10**9),
    ],
)  # fmt: skip
def test_rates_in_bits_and_in_bytes(text: str, rate: int) -> None:
    assert units.parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("50e9", "a unit is missing"), ("50", "a unit is missing"), (50, "a unit is missing"),
        ("fast", "cannot read"), ("50GF/s", "unknown unit 'GF/s'"), ("0GB/s", "more than zero"),
        ("400gb/s", "write 400Gb/s (bits) or 400GB/s (bytes)"), ("50gb", "bits per second or bytes"),
        ("9e9TB/s", "beyond an exabyte"),
    ],
)  # fmt: skip
def test_what_is_no_rate_is_refused_with_examples_of_rates(text: object, words: str) -> None:
    with pytest.raises(InputError) as refused:
        units.parse_rate(text, "--network")
    assert words in str(refused.value) and "80GiB" not in str(refused.value)
