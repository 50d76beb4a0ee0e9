"""cuDNN's workspaces, asked of the cuDNN that the run's PyTorch brings (a CUDA build, or its wheel)."""

from __future__ import annotations

import pytest

from zerokit.rehearsal.gpu import FakeGpu
from zerokit.rehearsal.process.cudnn import FORWARD, Choice, Convolution, Cudnn, CudnnError

MIB = 1 << 20
H200 = FakeGpu(
    title="NVIDIA H200", capability=(9, 0), total_memory_bytes=150109880320, multiprocessors=132, count=1
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
    assert 0 <= size <= cudnn.search_bytes(PATCHES, Choice())


def test_a_convolution_that_cannot_be_is_an_error(cudnn: Cudnn) -> None:
    with pytest.raises(CudnnError):
        cudnn.workspace_bytes(Convolution(
            operation=FORWARD, x=(4, 3, 8, 8), w=(8, 5, 3, 3), y=(4, 8, 6, 6), dtype=0,
            channels_last=False, padding=(0, 0), stride=(1, 1), dilation=(1, 1),
        ), Choice())  # fmt: skip
