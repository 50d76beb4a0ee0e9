"""The tuning of a compiled kernel: what it takes of the allocator at its first run, and only then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from zerokit.catalog import gpus  # noqa: E402
from zerokit.rehearsal.order import FakeGpu  # noqa: E402
from zerokit.rehearsal.process.adapters.compiled import SilentKernel  # noqa: E402
from zerokit.rehearsal.process.allocator import AllocatorSettings  # noqa: E402
from zerokit.rehearsal.process.ledger import GpuMemory  # noqa: E402

MIB = 1 << 20
H200_L2 = 60 * MIB  # as its driver says: cudaDeviceProp.l2CacheSize of an H200


def machine() -> Any:
    return SimpleNamespace(
        gpu=FakeGpu.of(gpus.load("h200"), 1), ledger=GpuMemory(AllocatorSettings.parse("")), warn=print
    )


def requests(where: Any) -> list[int]:
    return list(where.ledger.history.requested_bytes)


def test_a_kernel_is_timed_once_beside_a_buffer_of_the_caches_size() -> None:
    where = machine()
    kernel = SilentKernel(where, ("in_ptr0", "out_ptr0"), is_timed=True)
    for _ in range(2):
        kernel.run("input", "output")
    assert requests(where) == [H200_L2]
    assert where.ledger.allocated_bytes == 0
    assert where.ledger.peak_reserved_bytes == H200_L2
    SilentKernel(where).run("input")
    assert requests(where) == [H200_L2]


@pytest.mark.parametrize(("highest", "copies"), [(64 * MIB, [16 * MIB]), (8 * MIB, [])])
def test_what_it_writes_to_is_copied_where_that_raises_no_peak(highest: int, copies: list[int]) -> None:
    where = machine()
    where.ledger.pass_through((highest,), "before")
    with FakeTensorMode():
        changed = torch.empty(4 * MIB)
    kernel = SilentKernel(where, ("in_out_ptr0", "in_ptr0"), ("in_out_ptr0",), is_timed=True)
    kernel.run(changed, changed)
    assert requests(where) == [highest, *copies, H200_L2, *copies]
