"""cuDNN's workspaces, asked of the cuDNN that the run's PyTorch brings (a CUDA build, or its wheel)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from zerokit.catalog import gpus
from zerokit.rehearsal.order import FakeGpu
from zerokit.rehearsal.process.allocator import AllocatorSettings
from zerokit.rehearsal.process.kernels.cudnn import (
    FORWARD,
    WEIGHT_GRADIENT,
    Choice,
    Convolution,
    Convolutions,
    Cudnn,
    CudnnError,
    check,
)
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.messages import Messages

MIB = 1 << 20
H200 = FakeGpu(
    title="NVIDIA H200",
    capability=(9, 0),
    total_memory_bytes=150109880320,
    multiprocessors=132,
    threads_per_multiprocessor=2048,
    count=1,
)
PATCHES = Convolution(
    operation=FORWARD, x=(4, 3, 224, 224), w=(768, 3, 16, 16), y=(4, 768, 14, 14), dtype=0,
    channels_last=False, padding=(0, 0), stride=(16, 16), dilation=(1, 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def cudnn() -> Cudnn:
    try:
        return Cudnn(H200)
    except OSError as missing:
        pytest.skip(f"no cuDNN here: {missing}")


@pytest.mark.parametrize(("dtype", "measured"), [(0, 62_100_480), (9, 38_585_856)])
def test_the_workspace_is_that_of_an_h200(cudnn: Cudnn, dtype: int, measured: int) -> None:
    """A ResNet's first convolution: its measured peak less its output (measure/data/convolutions.txt)."""
    stem = Convolution(
        operation=FORWARD, x=(16, 3, 224, 224), w=(64, 3, 7, 7), y=(16, 64, 112, 112), dtype=dtype,
        channels_last=False, padding=(3, 3), stride=(2, 2), dilation=(1, 1),
    )  # fmt: skip
    size = cudnn.workspace_bytes(stem, Choice())
    assert size <= measured < size + MIB + 1024  # a block is rounded, and keeps up to 1 MiB


def test_a_plan_of_the_heuristics_is_known_without_a_gpu(cudnn: Cudnn) -> None:
    size = cudnn.workspace_bytes(PATCHES, Choice())
    assert 0 <= size <= cudnn.workspace_bytes(PATCHES, Choice(), search=True)


def test_a_hopper_with_slower_memory_is_told_of_as_such(cudnn: Cudnn) -> None:
    layer = Convolution(
        operation=WEIGHT_GRADIENT, x=(64, 768, 7, 7), w=(128, 768, 5, 5), y=(64, 128, 7, 7), dtype=9,
        channels_last=False, padding=(2, 2), stride=(1, 1), dilation=(1, 1),
    )  # fmt: skip
    slower = Cudnn(
        replace(H200, memory_clock_mhz=FakeGpu.of(gpus.load("h100-pcie-80gb"), 1).memory_clock_mhz)
    )
    searches = [one.workspace_bytes(layer, Choice(), search=True) for one in (slower, cudnn)]
    assert searches[0] != searches[1]


def test_a_convolution_that_cannot_be_is_an_error(cudnn: Cudnn) -> None:
    with pytest.raises(CudnnError):
        cudnn.workspace_bytes(Convolution(
            operation=FORWARD, x=(4, 3, 8, 8), w=(8, 5, 3, 3), y=(4, 8, 6, 6), dtype=0,
            channels_last=False, padding=(0, 0), stride=(1, 1), dilation=(1, 1),
        ), Choice())  # fmt: skip


@pytest.fixture
def machine() -> Machine:
    return Machine(H200, rank=0, world_size=1, allocator=AllocatorSettings(), messages=Messages(None, 0))


def _missing(machine: Machine) -> str:
    return "; ".join(sorted(set().union(*machine.ledger.lower_bounds.values())))


@pytest.mark.parametrize(
    ("shape", "groups", "dtype", "marked"),
    [
        ((4, 16, 300), 1, torch.float32, "one-dimensional"),
        ((4, 16, 300), 1, torch.bfloat16, "one-dimensional"),
        ((4, 16, 30, 30), 16, torch.bfloat16, "depthwise"),
        ((4, 16, 30, 30), 16, torch.float32, ""),
        ((4, 16, 30, 30), 1, torch.bfloat16, ""),
    ],
)
def test_a_backward_that_was_measured_to_differ_is_a_lower_bound(
    machine: Machine, shape: tuple[int, ...], groups: int, dtype: torch.dtype, marked: str
) -> None:
    """Those of ``measure/data/convolutions.txt`` whose measured peaks are not what cuDNN says."""
    flat = len(shape) == 3
    kernel = (16, 16 // groups, *[1] * (len(shape) - 2))
    with machine.fake:
        source, weight, gradient = (
            torch.empty(sizes, dtype=dtype, device="cuda") for sizes in (shape, kernel, shape)
        )
        if not flat:
            source = source.to(memory_format=torch.channels_last)
        results = torch.empty_like(source), torch.empty_like(weight), None
    ones, zeros = ([1], [0]) if flat else ([1, 1], [0, 0])
    arguments: tuple[Any, ...] = (
        gradient, source, weight, None, ones, zeros, ones, False, zeros, groups, [True, True, False],
    )  # fmt: skip
    Convolutions(machine).count("convolution_backward", arguments, results)
    found = _missing(machine)
    assert marked in found
    assert ("one-dimensional" in found, "depthwise" in found) == (
        marked == "one-dimensional", marked == "depthwise",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "source", "weight", "training", "marked"),
    [
        ((4, 8, 6, 6), torch.float32, torch.float32, True, True),
        ((4, 8, 6, 6), torch.float16, torch.float32, True, True),  # autocast
        ((4, 8, 6, 6), torch.float16, torch.float16, True, False),
        ((4, 8, 6, 6), torch.bfloat16, torch.float32, True, False),
        ((4, 8), torch.float32, torch.float32, True, False),
        ((4, 8, 6, 6), torch.float32, torch.float32, False, False),
    ],
)
def test_a_batch_norm_of_cudnn_is_a_lower_bound(
    machine: Machine, sizes: tuple[int, ...], source: torch.dtype, weight: torch.dtype, training: bool,
    marked: bool,
) -> None:  # fmt: skip
    """PyTorch's conditions: ``_select_batch_norm_backend`` in ``native/Normalization.cpp``."""
    images, scale, mean = torch.empty(sizes, dtype=source), torch.empty(8, dtype=weight), torch.empty(8)
    check(machine, "native_batch_norm", (images, scale, scale, mean, mean, training, 0.1, 1e-5))
    assert ("batch norm" in _missing(machine)) is marked
    machine.ledger.lower_bounds.clear()
    check(machine, "native_batch_norm_backward", (
        images, images, scale, mean, mean, mean, mean, training, 1e-5, [True, True, True],
    ))  # fmt: skip
    assert ("batch norm" in _missing(machine)) is marked
