"""Prices of single operators against what an H200 and its host took (``h200-operators.jsonl``)."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest

from zerokit.catalog import gpus
from zerokit.domain.hardware import Gpu
from zerokit.timing import host_prices, host_speed, kernel_prices, operators
from zerokit.timing.host_speed import HostSpeed
from zerokit.timing.operators import CAST, CAUSAL, Event
from zerokit.timing.recorded_step import prices, step_time

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "h200" / "h200-operators.jsonl")
    .read_text()
    .splitlines()
]


def of_kind(kind: str) -> list[dict]:
    return [row for row in ROWS if row["kind"] == kind]


def product(m: int, n: int, k: int) -> Event:
    return Event(
        operators.KERNEL,
        "mm",
        shapes=((1, m, n, k),),
        dtype="bfloat16",
        flops=2.0 * m * n * k,
        bytes_read=2 * (m * k + k * n),
        bytes_written=2 * m * n,
        launches=1,
    )


def errors(pairs: list[tuple[float, float]]) -> list[float]:
    return [abs(predicted / measured - 1) for predicted, measured in pairs]


def test_products_take_what_an_h200_took():
    pairs = [
        (
            kernel_prices.seconds(product(row["tokens"], row["out"], row["inp"]), kernel_prices.H200),
            row["seconds"],
        )
        for row in of_kind("linear")
        if row["seconds"] > 50e-6
    ]
    assert len(pairs) > 30
    assert statistics.median(errors(pairs)) < 0.06
    assert max(errors(pairs)) < 0.35


def elementwise(row: dict) -> Event | None:
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
    return Event(
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
        (elementwise(row), row["seconds"]) for row in of_kind("pointwise") if row["elements"] >= 1 << 26
    ]
    pairs = [(kernel_prices.seconds(event, kernel_prices.H200), took) for event, took in events if event]
    assert len(pairs) == 20
    assert statistics.median(errors(pairs)) < 0.05
    assert max(errors(pairs)) < 0.30


@pytest.mark.parametrize("backward", [False, True])
def test_attention_takes_what_an_h200_took(backward):
    pairs = []
    for row in of_kind("sdpa"):
        query = (row["batch"], row["heads"], row["seq"], row["head"])
        flops = 2.0 * row["batch"] * row["heads"] * row["seq"] ** 2 * row["head"]
        event = Event(
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


def test_the_host_pays_for_python_between_operators():
    plain = Event(operators.KERNEL, "add", launches=1)
    busy = plain._replace(python_calls=100, c_calls=30)
    assert host_prices.seconds(busy) - host_prices.seconds(plain) == pytest.approx(
        110 * host_prices.REFERENCE.python_call
    )


def test_a_probe_like_the_reference_host_has_factor_one():
    probe = dict(host_speed.REFERENCE_SECONDS)
    assert host_speed.factor_of(probe) == pytest.approx(1.0)
    assert host_speed.factor_of({name: took / 2 for name, took in probe.items()}) == pytest.approx(0.5)


def test_the_reference_is_the_measured_host():
    measured = {row["op"]: row["seconds"] for row in of_kind("host")}
    names = {
        "add": "add, no grad",
        "add_in_place": "mul_ in place",
        "add_with_gradient": "add, grad",
        "view": "view",
        "linear": "nn.Linear module, grad",
        "linear_backward": "backward node (linear), C++ thread",
        "model": "Llama, 16 layers, forward and backward",
    }
    for name, took in host_speed.REFERENCE_SECONDS.items():
        assert took == pytest.approx(measured[names[name]], rel=1e-3)


@pytest.mark.parametrize("probe", [{}, {"add": 0.0}, {"add": float("nan")}, {"else": 1.0}])
def test_a_probe_without_seconds_is_refused(probe):
    with pytest.raises(ValueError, match="positive seconds"):
        host_speed.factor_of(probe)


def test_the_model_goes_before_single_operators_and_rounds_have_a_spread():
    rounds = {name: [took] * 40 for name, took in host_speed.REFERENCE_SECONDS.items()}
    reference = host_speed.REFERENCE_SECONDS["model"]
    rounds["model"] = [0.8 * reference] * 34 + [1.6 * reference] * 4 + [9 * reference, 0.1 * reference]
    found = host_speed.speed_of(rounds, "probe")
    assert found.factor == pytest.approx(0.8)
    assert (found.low, found.high) == (pytest.approx(0.8), pytest.approx(1.6))  # single outliers left out
    with pytest.raises(ValueError, match="one round"):
        host_speed.speed_of({}, "probe")
    step = step_time(small_kernels(100), gpus.load("h200"), 1, host=found)
    assert (step.low, step.high) == (pytest.approx(step.seconds), pytest.approx(2 * step.seconds))
    assert "0.80, 0.80 to 1.60 while it was probed" in step.note


def small_kernels(count: int) -> list[Event]:
    return [Event(operators.KERNEL, "add", launches=1, bytes_read=8) for _ in range(count)]


def test_a_step_on_an_unknown_host_is_a_range():
    found = step_time(small_kernels(100), gpus.load("h200"), 1)
    assert found.paced_by == "host"
    known = step_time(small_kernels(100), gpus.load("h200"), 1, host=HostSpeed(factor=1.0, source="")).seconds
    assert found.low == pytest.approx(host_speed.FASTEST * known)
    assert found.high == pytest.approx(host_speed.SLOWEST * known)
    assert found.seconds**2 == pytest.approx(found.low * found.high)  # the middle of the hosts measured
    assert "not known" in found.note and found.host_factor is None


def test_a_step_on_a_probed_host_is_a_figure():
    host = host_speed.HostSpeed(factor=0.8, source="a probe")
    found = step_time(small_kernels(100), gpus.load("h200"), 1, host=host)
    assert found.low == found.high == found.seconds
    reference = HostSpeed(factor=1.0, source="")
    whole = step_time(small_kernels(100), gpus.load("h200"), 1, host=reference).seconds
    assert found.seconds == pytest.approx(0.8 * whole)


def collective(name: str, ranks: int) -> Event:
    return Event(operators.COLLECTIVE, name, bytes_read=1 << 30, group_size=ranks)


def test_collectives_take_what_eight_h200s_took():
    # measured bus bandwidth at 1 GiB: all-reduce 359, reduce-scatter 343 GB/s
    link = prices(gpus.load("h200"), 8).collective
    assert link(collective("allreduce_", 8)) == pytest.approx(2 * 7 / 8 * 2**30 / 359e9, rel=0.06)
    assert link(collective("_reduce_scatter_base_", 8)) == pytest.approx(7 / 8 * 2**30 / 343e9, rel=0.06)


def test_a_group_of_one_only_copies():
    link = prices(gpus.load("h200"), 1).collective
    assert link(collective("allreduce_", 1)) == 0
    assert link(collective("_allgather_base_", 1)) == pytest.approx(2 * 2**30 / 4.1e12)


def test_gpus_of_a_node_share_its_host_link_and_its_cores():
    gpu = gpus.load("h200")
    copy = Event(operators.TO_HOST, "copy_", bytes_read=1 << 30)
    adam = Event(operators.CPU_ADAM, "adam_update", bytes_read=10**9)
    one, eight = prices(gpu, 1), prices(gpu, 8)
    assert eight.copy(copy) > one.copy(copy)
    assert eight.copy(copy) == pytest.approx(2**30 / 10.9e9, rel=0.05)  # all eight at once, measured
    assert eight.cpu_adam(adam) == pytest.approx(8 * one.cpu_adam(adam))


def test_rows_come_back_as_events():
    event = product(2, 3, 4)
    assert list(operators.from_rows(json.loads(json.dumps([event])))) == [event]
    with pytest.raises(ValueError, match="no kind"):
        list(operators.from_rows([["dance", "x"]]))


def test_gpus_without_16_bit_products_have_prices():
    gpu: Gpu = dataclasses.replace(gpus.load("h200"), peak_flops={"fp32": 10e12})
    assert kernel_prices.rates(gpu).product > 0
