"""Prices of single operators against what an H200 and its host took (``h200-operators.jsonl``)."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from tests.support.h200_operators import measured_operators, product
from zerokit.catalog import gpus
from zerokit.domain.hardware import Gpu
from zerokit.timing import kernel_prices, operators
from zerokit.timing.operators import CAST, CAUSAL, IssuedOperator
from zerokit.timing.recorded_step import prices


def errors(pairs: list[tuple[float, float]]) -> list[float]:
    return [abs(predicted / measured - 1) for predicted, measured in pairs]


def test_products_take_what_an_h200_took():
    pairs = [
        (
            kernel_prices.seconds(product(row["tokens"], row["out"], row["inp"]), kernel_prices.H200),
            row["seconds"],
        )
        for row in measured_operators("linear")
        if row["seconds"] > 50e-6
    ]
    assert len(pairs) > 30
    assert statistics.median(errors(pairs)) < 0.06
    assert max(errors(pairs)) < 0.35


def elementwise(row: dict) -> IssuedOperator | None:
    width = {"bfloat16": 2, "float32": 4}[row["dtype"]]
    size = row["elements"] * width
    read, written, layout = {
        "add": (2 * size, size, ""),
        "mul_": (size, size, ""),
        "silu": (size, size, ""),
        "copy": (size, size, ""),
        "to_other": (size, size * 2 if width == 2 else size // 2, CAST),
    }.get(row["op"], (0, 0, ""))
    if not read:
        return None
    name = "_to_copy" if row["op"] == "to_other" else row["op"]
    shapes = ((row["elements"],),) * 2
    return IssuedOperator(
        operators.KERNEL,
        name,
        shapes=shapes,
        layout=layout,
        bytes_read=read,
        bytes_written=written,
        launches=1,
    )


def test_elementwise_kernels_take_what_an_h200_took():
    events = [
        (elementwise(row), row["seconds"])
        for row in measured_operators("pointwise")
        if row["elements"] >= 1 << 26
    ]
    pairs = [(kernel_prices.seconds(event, kernel_prices.H200), took) for event, took in events if event]
    assert len(pairs) == 20
    assert statistics.median(errors(pairs)) < 0.05
    assert max(errors(pairs)) < 0.30


@pytest.mark.parametrize("backward", [False, True])
def test_attention_takes_what_an_h200_took(backward):
    pairs = []
    for row in measured_operators("sdpa"):
        query = (row["batch"], row["heads"], row["seq"], row["head"])
        flops = 2.0 * row["batch"] * row["heads"] * row["seq"] ** 2 * row["head"]
        event = IssuedOperator(
            operators.KERNEL,
            "_scaled_dot_product_cudnn_attention" + ("_backward" if backward else ""),
            shapes=(query, query, query),
            dtype="bfloat16",
            layout=CAUSAL,
            flops=flops * (2.5 if backward else 1.0),
            launches=3 if backward else 1,
        )
        measured = row["backward_seconds" if backward else "forward_seconds"]
        if measured > 50e-6:
            pairs.append((kernel_prices.seconds(event, kernel_prices.H200), measured))
    assert len(pairs) >= 6
    assert statistics.median(errors(pairs)) < 0.15
    assert max(errors(pairs)) < 0.40


def test_other_gpus_scale_with_their_datasheets():
    h200, a100 = gpus.load("h200"), gpus.load("a100-80gb")
    large = product(8192, 8192, 8192)
    ratio = kernel_prices.seconds(large, kernel_prices.rates(a100)) / kernel_prices.seconds(
        large, kernel_prices.rates(h200)
    )
    assert ratio == pytest.approx(790 / 271, rel=0.03)  # measured: 271 TFLOP/s on A100
    assert kernel_prices.rates(a100).vectorized / kernel_prices.rates(h200).vectorized == pytest.approx(
        a100.hbm_bytes_per_second / h200.hbm_bytes_per_second
    )


def test_a_measured_rate_replaces_the_datasheets():
    assert kernel_prices.rates(gpus.load("h200"), 700e12).product == 700e12


def collective(name: str, ranks: int) -> IssuedOperator:
    return IssuedOperator(operators.COLLECTIVE, name, bytes_read=1 << 30, group_size=ranks)


def test_collectives_take_what_eight_h200s_took():
    # measured bus bandwidth at 1 GiB: all-reduce 359, reduce-scatter 343 GB/s
    link = prices(gpus.load("h200"), 8)(1.0, "").collective
    assert link(collective("allreduce_", 8)) == pytest.approx(2 * 7 / 8 * 2**30 / 359e9, rel=0.06)
    assert link(collective("_reduce_scatter_base_", 8)) == pytest.approx(7 / 8 * 2**30 / 343e9, rel=0.06)


def test_a_group_of_one_only_copies():
    link = prices(gpus.load("h200"), 1)(1.0, "").collective
    assert link(collective("allreduce_", 1)) == 0
    assert link(collective("_allgather_base_", 1)) == pytest.approx(2 * 2**30 / 4.1e12)


def test_gpus_without_16_bit_products_have_prices():
    gpu: Gpu = dataclasses.replace(gpus.load("h200"), peak_flops={"fp32": 10e12})
    assert kernel_prices.rates(gpu).product > 0
