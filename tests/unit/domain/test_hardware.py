"""Hardware as a plan sees it."""

from __future__ import annotations

import pytest

from zerokit.catalog import gpus
from zerokit.domain.hardware import Processors, partial_column_sums
from zerokit.units import GIB


@pytest.mark.parametrize("total", [24 * GIB, 40 * GIB, 192 * GIB])
def test_another_total_memory_leaves_what_the_driver_keeps(total: int) -> None:
    gpu = gpus.load("h200")
    changed = gpu.with_total_memory(total)
    assert changed.driver_vram_bytes == total
    assert total - changed.vram_bytes == gpu.driver_vram_bytes - gpu.vram_bytes
    assert changed.peak_flops == gpu.peak_flops


def test_the_driver_never_keeps_half_of_a_small_memory() -> None:
    kept = gpus.load("h200").driver_vram_bytes - gpus.load("h200").vram_bytes
    changed = gpus.load("h200").with_total_memory(kept + 1)
    assert changed.vram_bytes == changed.driver_vram_bytes == kept + 1


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
