"""Hardware as a plan sees it."""

from __future__ import annotations

import pytest

from zerokit.catalog import gpus
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
