"""What sums over rows take beside their result, against histories of an H200's allocator."""

from __future__ import annotations

from zerokit.domain.partial_sums import Processors, partial_column_sums

H200 = Processors(count=132, threads=2048)


def test_the_gradient_of_a_bias_takes_what_was_measured() -> None:
    # biases of 768 and 3072 over 1,536 tokens in fp16 (run_swag.py on an H200, torch 2.11): partial results,
    # and a block of 512 bytes for the semaphores
    assert partial_column_sums(768, 1536, 2, H200) == 9437184 + 512
    assert partial_column_sums(3072, 1536, 2, H200) == 37748736 + 512


def test_few_rows_take_nothing_and_more_never_less() -> None:
    assert partial_column_sums(4096, 64, 2, H200) == 0
    taken = [partial_column_sums(4096, rows, 2, H200) for rows in range(128, 16384, 128)]
    assert taken == sorted(taken) and taken[-1] > 1 << 27


def test_beyond_32_bit_offsets_one_half_of_the_rows_is_summed_after_the_other() -> None:
    whole = partial_column_sums(32000, 1 << 16, 2, H200)
    assert whole == partial_column_sums(32000, 1 << 15, 2, H200) < partial_column_sums(32000, 33_000, 2, H200)
